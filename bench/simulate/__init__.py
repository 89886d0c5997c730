"""Work out what a deployment carries from what the other benchmarks measured."""
