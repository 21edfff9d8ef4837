"""The OpenAPI document: what the server has, told from its routes and from the types that bodies are read into."""
