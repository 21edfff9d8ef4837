"""Chat templates in the manners that models use, written for these tests."""

CHATML = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}"
    "{{ '<|turn|>system\nBe helpful.<|end|>\n' }}{% endif %}"
    "{{ '<|turn|>' + message['role'] + '\n' + message['content'] + '<|end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|turn|>assistant\n' }}{% endif %}"
)
TRIMMED = (
    "{{- bos_token }}\n"
    "{%- for message in messages %}\n"
    "    {{- '<|turn|>' ~ message.role ~ '<|end|>\n\n' ~ (message.content | trim) ~ '</s>' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}{{- '<|turn|>assistant<|end|>\n\n' }}{%- endif %}\n"
)
ALTERNATING = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'].strip() + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'] + eos_token }}{% endif %}{% endfor %}"
)
THINKING = (
    "{%- macro part(text) %}{{- text.strip('\n') }}{%- endmacro %}"
    "{%- set ns = namespace(last=0) %}"
    "{%- for message in messages %}"
    "{%- if message.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}"
    "{%- endfor %}"
    "{%- for message in messages %}"
    "{%- set content = message.content %}{%- set thought = '' %}"
    "{%- if '</think>' in content %}"
    "{%- set thought = content.split('</think>')[0].split('<think>')[-1] %}"
    "{%- set content = content.split('</think>')[-1].lstrip('\n') %}"
    "{%- endif %}"
    "{{- '<|turn|>' ~ message.role ~ '\n' }}"
    "{%- if thought and loop.index0 > ns.last %}{{- '<think>\n' + part(thought) + '\n</think>\n\n' }}{%- endif %}"
    "{{- content ~ '<|end|>\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|turn|>assistant\n' }}{%- endif %}"
)
TOOLS = (
    "{%- if tools %}{{- '<|turn|>system\n' }}"
    "{%- for tool in tools %}{{- tool | tojson(indent=2) }}\n"
    "{%- for key, value in tool.function.parameters.properties | dictsort %}"
    "{{- '<' ~ key ~ '>' ~ value.type | upper ~ '</' ~ key ~ '>' }}{%- endfor %}"
    "{%- if tool.type != 'function' %}{{- raise_exception('functions only') }}{%- endif %}"
    "{%- endfor %}{{- '<|end|>\n' }}{%- endif %}"
    "{%- for message in messages %}{{- '<|turn|>' + message.role }}"
    "{%- if message.name is defined %}{{- ' name=' + message.name }}{%- endif %}{{- '\n' + message.content }}"
    "{%- for call in message.tool_calls or [] %}"
    "{{- '<call>' ~ call.function.name ~ '(' ~ (call.function.arguments | tojson) ~ ')</call>' }}"
    "{%- for key, value in call.function.arguments.items() %}"
    "{{- '<' + key + '>' ~ value ~ '</' ~ key ~ '>' }}"
    "{%- endfor %}"
    "{%- endfor %}{{- '<|end|>\n' }}{%- endfor %}"
)
LOUD = "{% for m in messages %}{{ '<|turn|>' ~ m.content | upper ~ m.content | lower ~ '<|end|>' }}{% endfor %}"
GLUED = (
    "{% for m in messages %}"
    "{{ m.content ~ m.content }}{{ '<' ~ m.content ~ '>' }}{{ '<|' + m.content + '|>' }}"
    "{% endfor %}"
)

ALL = {
    "chatml": CHATML,
    "trimmed": TRIMMED,
    "alternating": ALTERNATING,
    "thinking": THINKING,
    "tools": TOOLS,
    "loud": LOUD,
    "glued": GLUED,
}
