"""Groups each user's tools by what they do, in the background.

`clustering.py` finds the groups in the tools' vectors, `matching.py` recognizes them as those of the last run,
`naming.py` names them by their own words, `maker.py` reads and writes, and `background.py` decides when.
"""
