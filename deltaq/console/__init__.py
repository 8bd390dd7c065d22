"""The console: a live web page of roots, topics, messages and groups. Needs the extra
`[console]`.

Modules:

* `server`, `app`, `rendering`: the console as a server, its addresses and live updates, its
  templates; the only modules that know uvicorn, starlette and jinja2
* `visits`, `pages`, `changes`, `messages`: a request as pages see it; what they show, and change;
  messages of bounded size
* `poller`, `view`, `charts`: the one look at a root for all open pages; what it adds up to, and
  charts, as pure functions
* `view_groups`, `graphs`: groups of SQL views, their rows and their proof; their graph, as a pure
  function
* `decoding`, `decoder_process`: values with a schema of the registry as text; the process that
  decodes them, with limits of time and memory
* `security`, `connections`, `exposition`: hosts, token, sessions and headers; limits of
  connections; metrics of roots
"""
