"""What Sphinx does in addition for this site: generated pages, links that suit GitHub, and docstrings in Markdown."""
