"""POST /v1/messages: Anthropic's way of asking for what a chat asks for, and of being answered."""
