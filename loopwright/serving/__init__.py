"""The server: OpenAI's HTTP interface to the engine, with a depth per request. The one room that needs the `serve` extra."""
