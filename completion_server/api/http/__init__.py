"""The HTTP front end: the dialects that editor plugins already speak. The only package that knows Starlette."""
