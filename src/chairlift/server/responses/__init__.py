"""POST /v1/responses: the OpenAI Responses API, without anything that is kept between requests.

body.py -> conversation.py, request.py -> the same question as that of a chat -> items.py, telling.py
"""
