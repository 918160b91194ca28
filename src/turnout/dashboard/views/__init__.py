"""The data of each page as JSON-compatible values: one function per page, independent of HTTP."""
