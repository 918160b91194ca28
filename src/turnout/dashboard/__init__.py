"""A read-only web dashboard of any store; the browser code needs no build step."""
