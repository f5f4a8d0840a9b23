"""What goes back to a client: the sequences of a request as they grow, in OpenAI's JSON, whole or as a stream."""
