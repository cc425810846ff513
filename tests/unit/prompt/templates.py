"""Chat templates that tests share: of real families, and of the kinds that break servers."""

from __future__ import annotations

from datetime import datetime

from appliance.prompt.chat_format.template_runner import TemplateRunner

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# SmolLM2: a default system text when the conversation brings none.
SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
NO_SYSTEM = (
    "{{ bos_token }}{% if messages[0]['role']=='system' %}"
    "{{ raise_exception('no system turn in this format') }}{% endif %}"
    "{% for m in messages %}<start_of_turn>{{ 'model' if m.role=='assistant' else m.role }}\n"
    "{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
ALTERNATING = (
    "{% for m in messages %}{% if (m.role=='user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"
)
LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}"
    "{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if loop.index0 == 0 and system_message != false %}"
    "{% set content = '<<SYS>>\n' + system_message + '\n<</SYS>>\n\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}"
    "{% endif %}{% endfor %}"
)
LAST_IS_SPECIAL = (
    "{% for m in messages %}{% if loop.last %}LAST {% endif %}[{{ m.role }}]{{ m.content }};"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
SKIPS_EMPTY = (
    "{% for m in messages %}{% if m.content %}[{{ m.role }}]{{ m.content }};{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
WHITE_SPACE = (
    "{% for m in messages %}\n    {% if m.role == 'user' %}\nU: {{ m.content }}\n    {% else %}\n"
    "A: {{ m.content }}\n    {% endif %}\n{% endfor %}\n"
    "{{ {'k': 'café <&>', 'b': 1} | tojson }}\n"
)
LOOKS_INSIDE = {
    "search": "{% for m in messages %}{% if '</think>' in m.content %}X{% endif %}[{{ m.role }}]"
    "{{ m.content }}{% endfor %}",
    "split": "{% for m in messages %}[{{ m.role }}]{{ m.content.split('</think>')[-1] }}{% endfor %}",
    "start": "{% for m in messages %}{% if m.content.startswith('<tool>') %}T{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}",
    "json": "{% for m in messages %}[{{ m.role }}]{{ m.content | tojson }}{% endfor %}",
    "upper": "{% for m in messages %}[{{ m.role }}]{{ m.content | upper }}{% endfor %}",
    "newlines": "{% for m in messages %}[{{ m.role }}]{{ m.content.lstrip('\n') }}{% endfor %}",
    "spaces": "{% for m in messages %}[{{ m.role }}]{{ m.content.rstrip(' ') }}{% endfor %}",
    "twice": "{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ m.content }}{% endfor %}",
    "dropped": "{% for m in messages %}[{{ m.role }}]{% endfor %}",
    "reversed": "{% for m in messages | reverse %}[{{ m.role }}]{{ m.content }}{% endfor %}",
}
_TURN = "[{{ m.role }}]{{ m.content }}"
_TURNS = "{% for m in messages %}" + _TURN + "{% endfor %}"
COUNTS = {
    "index": "{% for m in messages %}{% if loop.index > 17 %}X{% endif %}" + _TURN + "{% endfor %}",
    "index is": "{% for m in messages %}{% if loop.index == 90 %}X{% endif %}"
    + _TURN
    + "{% endfor %}",
    "from the end": "{% for m in messages %}{% if loop.revindex == 30 %}X{% endif %}"
    + _TURN
    + "{% endfor %}",
    "every": "{% for m in messages %}{% if loop.index0 and loop.index0 % 10 == 0 %}X{% endif %}"
    + _TURN
    + "{% endfor %}",
    "length": "{% if messages | length > 20 %}X{% endif %}" + _TURNS,
    "length is": "{% if messages | length == 44 %}X{% endif %}" + _TURNS,
    "length is with a system text": "{% if messages | length == 45 and messages[0].role == 'system' %}"
    "X{% endif %}" + _TURNS,
    "folded": "{% if messages | length == 6 * 7 + 1 %}X{% endif %}" + _TURNS,
    "window": "{% for m in messages[-26:] %}" + _TURN + "{% endfor %}",
    "product of variables": "{% set a = 9 %}{% set b = 11 %}"
    "{% if messages | length > a * b %}X{% endif %}" + _TURNS,
    "messages of one role": "{% if messages | selectattr('role', 'eq', 'user') | list | length == 31 %}"
    "X{% endif %}" + _TURNS,
    "users in a row": "{% if messages[-12:] | selectattr('role', 'eq', 'user') | list | length == 12 %}"
    "X{% endif %}" + _TURNS,
    "further than is probed": "{% set a = 101 %}{% if messages | length > 4 * a %}X{% endif %}"
    + _TURNS,
}
"""Whole layouts: a rule that starts beyond a few messages."""

MEASURES = {
    "longer": "{% for m in messages %}{% if m.content | length > 150 %}X{% endif %}"
    + _TURN
    + "{% endfor %}",
    "as long": "{% for m in messages %}{% if m.content | length == 700 %}X{% endif %}"
    + _TURN
    + "{% endfor %}",
    "words": "{% for m in messages %}{% if m.content | wordcount > 60 %}X{% endif %}"
    + _TURN
    + "{% endfor %}",
    "lines": "{% for m in messages %}{% if m.content.splitlines() | length > 25 %}X{% endif %}"
    + _TURN
    + "{% endfor %}",
    "cut": "{% for m in messages %}[{{ m.role }}]{{ m.content[:9000] }}{% endfor %}",
    "truncated": "{% for m in messages %}[{{ m.role }}]{{ m.content | truncate(200) }}{% endfor %}",
    "truncated by default": "{% for m in messages %}[{{ m.role }}]{{ m.content | truncate }}{% endfor %}",
    "wrapped": "{% for m in messages %}[{{ m.role }}]{{ m.content | wordwrap }}{% endfor %}",
    "far too many numbers": _TURNS + "".join(f"{{{{ '' if {n} }}}}" for n in range(40)),
}
"""Refused: what is written depends on how long a content is."""

FAMILIES = {
    "llama3": "{{ bos_token }}{% if messages[0].role == 'system' %}"
    "{% set lead = messages[0].content | trim %}{% set turns = messages[1:] %}"
    "{% else %}{% set lead = '' %}{% set turns = messages %}{% endif %}"
    "{{ '<|start|>system<|end|>\n\nToday: ' + strftime_now('%d %b %Y') + '\n\n' + lead + '<|eot|>' }}"
    "{% for m in turns %}{{ '<|start|>' + m.role + '<|end|>\n\n' + m.content | trim + '<|eot|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant<|end|>\n\n' }}{% endif %}",
    "mistral": "{% if messages[0].role == 'system' %}{% set lead = messages[0].content + '\n\n' %}"
    "{% set turns = messages[1:] %}{% else %}{% set lead = '' %}{% set turns = messages %}{% endif %}"
    "{{ bos_token }}{% for m in turns %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('turns must alternate') }}{% endif %}{% if m.role == 'user' %}"
    "{{ '[INST] ' + (lead if loop.first else '') + m.content + ' [/INST]' }}"
    "{% elif m.role == 'assistant' %}{{ ' ' + m.content + eos_token }}"
    "{% else %}{{ raise_exception('no such turn') }}{% endif %}{% endfor %}",
    "gemma": NO_SYSTEM,
    "qwen": "{% if messages[0].role == 'system' %}{% set skip = 1 %}{{ '<|im_start|>system\n' + "
    "messages[0].content + '<|im_end|>\n' }}{% else %}{% set skip = 0 %}"
    "{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}{% for m in messages[skip:] %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "phi": "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}",
    "falcon": "{% for m in messages %}{% if not loop.first %}{{ '\n' }}{% endif %}"
    "{{ {'system': 'System', 'user': 'User', 'assistant': 'Falcon'}[m.role] + ': ' + m.content | trim }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '\n' + 'Falcon:' }}{% endif %}",
}
"""In the style of known families: what a turn costs must not grow with the conversation."""


def runner(template: str) -> TemplateRunner:
    """A runner with a BOS and an EOS token."""
    return TemplateRunner(
        template=template,
        origin="chat_template.jinja",
        variables={"bos_token": "<s>", "eos_token": "</s>"},
        now=datetime(2026, 1, 31),
    )
