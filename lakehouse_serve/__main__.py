"""`python -m lakehouse_serve`: the catalog service of a home, as `lakehouse up` starts it."""

from lakehouse.settings import load_settings
from lakehouse_serve.run import serve

if __name__ == "__main__":
    serve(load_settings())
