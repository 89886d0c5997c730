// A file of its own, since the page's Content-Security-Policy forbids inline scripts.
SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  // the default validator is a service on the internet
  validatorUrl: null,
});
