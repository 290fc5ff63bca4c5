"""Random cases against what the library promises: a few of them in `make test`, as many as time allows in `make fuzz`.

`harness` defines what a property is, `oracles` what must hold, `cases` the inputs that several properties share. Every
other module holds the properties of one category.
"""
