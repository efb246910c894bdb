"""An Iceberg REST catalog over HTTP, as small as a pipeline needs it: namespaces, tables, commits. Its state is a
SQLite catalog, so a commit that does not fit is refused as by any other.
"""

import threading

from flask import Flask, request
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchNamespaceError, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableRequest
from werkzeug.serving import make_server

PREFIX = "/v1/namespaces"


class RestCatalog:
    """Serves at ``url``. ``lose`` answers of commits that landed are lost; ``commits`` counts those that landed."""

    def __init__(self, place):
        place.mkdir()
        self.commits = self.lose = 0
        self._lock = threading.Lock()
        self._catalog = SqlCatalog("rest", uri=f"sqlite:///{place}/catalog.db", warehouse=f"file://{place}/warehouse")
        self._server = make_server("127.0.0.1", 0, self._app(), threaded=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _app(self):
        app, catalog = Flask("rest-catalog"), self._catalog

        def answer(table):
            return {"metadata-location": table.metadata_location, "metadata": plain(table.metadata), "config": {}}

        def plain(value):
            return app.json.loads(value.model_dump_json())

        def failed(code):
            def handle(error):
                return {"error": {"message": str(error), "type": type(error).__name__, "code": code}}, code

            return handle

        for kind, code in ((CommitFailedException, 409), (TableAlreadyExistsError, 409), (NoSuchTableError, 404)):
            app.register_error_handler(kind, failed(code))
        app.register_error_handler(NoSuchNamespaceError, failed(404))

        @app.get("/v1/config")
        def config():
            return {"defaults": {}, "overrides": {}}

        @app.post(PREFIX)
        def create_namespace():
            catalog.create_namespace_if_not_exists(tuple(request.json["namespace"]))
            return {"namespace": request.json["namespace"], "properties": {}}

        @app.route(f"{PREFIX}/<name>", methods=["GET", "HEAD"])
        def namespace(name):
            catalog.load_namespace_properties(name)
            return {"namespace": [name], "properties": {}}

        @app.post(f"{PREFIX}/<name>/tables")
        def create(name):
            schema = Schema.model_validate(request.json["schema"])
            return answer(catalog.create_table((name, request.json["name"]), schema))

        @app.route(f"{PREFIX}/<name>/tables/<table>", methods=["GET", "HEAD"])
        def load(name, table):
            return answer(catalog.load_table((name, table)))

        @app.post(f"{PREFIX}/<name>/tables/<table>")
        def commit(name, table):
            wanted = CommitTableRequest.model_validate_json(request.data)
            with self._lock:
                done = catalog.commit_table(catalog.load_table((name, table)), wanted.requirements, wanted.updates)
                self.commits += 1
                if self.lose and any(update.action == "add-snapshot" for update in wanted.updates):
                    self.lose -= 1
                    return {"error": {"message": "gateway", "type": "Timeout", "code": 504}}, 504
            return {"metadata-location": done.metadata_location, "metadata": plain(done.metadata)}

        return app
