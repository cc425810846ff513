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


def runner(template: str) -> TemplateRunner:
    """A runner with a BOS and an EOS token."""
    return TemplateRunner(
        template=template,
        origin="chat_template.jinja",
        variables={"bos_token": "<s>", "eos_token": "</s>"},
        now=datetime(2026, 1, 31),
    )
