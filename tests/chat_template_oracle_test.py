"""Compares Cairn's rendering of chats, id for id, with Jinja rendering the template itself.

    chat_template_oracle_test.py TOKENIZE_TOOL MODEL.gguf [CONVERSATIONS]

The oracle renders a conversation with Jinja as the `transformers` package sets it up, cuts the text
at the control tokens that the template wrote, and encodes what is between them with the
`tokenizers` package. An assistant's content is cut out too: the model writes it after the prompt,
so its tokens stand apart. Control tokens spelled in contents are hidden from the cutting, because a
content is plain text. One template is the model's own; the others are written in the manner of
their family, on the model's vocabulary with the family's control tokens added.

The second law needs no oracle: a conversation that grows turn by turn has the tokens of one that is
rendered at once.
"""

import os
import re
import sys
import tempfile

from jinja2.sandbox import ImmutableSandboxedEnvironment

from tokenize_client import TokenizeTool, Vocabulary
from tokenizer_oracle_test import SEED, Strings, oracles

SEAM = "\ue002"  # private-use characters, which the strings do not contain
HIDDEN = {"<": "\ue000", "[": "\ue001"}  # every control token begins with one of these

CHATML_PLAIN = (
    "{{ bos_token }}{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
    "message['content'] | trim + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")

CHATML_BLOCKS = """
{%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\nYou are terse.\\nYou are kind.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role != 'system' or not loop.first %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

LLAMA3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = "
    "'<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim"
    " + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}"
    "{{ content }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}")

LLAMA31 = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

GEMMA2 = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
    "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}"
    "{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\\n' + "
    "message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}")

GEMMA3 = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else "") }}
    {{- message['content'] | trim }}
    {{- '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ '<start_of_turn>model\\n' }}
{%- endif -%}
"""

MISTRAL_SYSTEM_IN_USER = """
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message['role'] == 'user' %}
        {%- if loop.first and system_message is defined %}
            {{- '[INST] ' + system_message + '\\n\\n' + message['content'] + ' [/INST]' }}
        {%- else %}
            {{- '[INST] ' + message['content'] + ' [/INST]' }}
        {%- endif %}
    {%- elif message['role'] == 'assistant' %}
        {{- message['content'] + eos_token}}
    {%- else %}
        {{- raise_exception('Only user and assistant roles are supported') }}
    {%- endif %}
{%- endfor %}
"""

MISTRAL_SYSTEM_PROMPT = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}"
    "{{ '[SYSTEM_PROMPT]' + message['content'] + '[/SYSTEM_PROMPT]' }}"
    "{% elif message['role'] == 'user' %}{{ '[INST]' + message['content'] + '[/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token }}"
    "{% else %}{{ raise_exception('unknown role') }}{% endif %}{% endfor %}")

MISTRAL_NO_SYSTEM = (
    "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != "
    "(loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token }}"
    "{% else %}{{ raise_exception('Only user and assistant roles') }}{% endif %}{% endfor %}")

ZEPHYR = """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\\n'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""

PHI3 = (
    "{% for message in messages %}{% if message['role'] == 'system' %}{{'<|system|>\\n' + "
    "message['content'] + '<|end|>\\n'}}{% elif message['role'] == 'user' %}{{'<|user|>\\n' + "
    "message['content'] + '<|end|>\\n'}}{% elif message['role'] == 'assistant' %}"
    "{{'<|assistant|>\\n' + message['content'] + '<|end|>\\n'}}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}")

TAGS = ["<|system|>", "<|user|>", "<|assistant|>"]
HEADERS = ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
TURNS = ["<start_of_turn>", "<end_of_turn>", "<bos>"]
INST = ["<s>", "</s>", "[INST]", "[/INST]"]
ANY, STRICT = "any order", "alternating"

# name, template (None: the model's own), pre-tokenizer, added control tokens, bos, eos, trims, roles
CASES = [
    ("the model's own", None, "smollm", [], None, None, False, ANY),
    ("ChatML, bos and trim", CHATML_PLAIN, "smollm", ["<s>"], "<s>", None, True, ANY),
    ("ChatML, default system", CHATML_BLOCKS, "gpt-2", [], None, None, False, ANY),
    ("Llama 3", LLAMA3, "llama-bpe", [*HEADERS, "<bos>"], "<bos>", "<|eot_id|>", True, ANY),
    ("Llama 3.1", LLAMA31, "llama-bpe", [*HEADERS, "<bos>"], "<bos>", "<|eot_id|>", True, ANY),
    ("Gemma 2", GEMMA2, "gpt-2", TURNS, "<bos>", "<end_of_turn>", True, STRICT),
    ("Gemma 3", GEMMA3, "gpt-2", TURNS, "<bos>", "<end_of_turn>", True, STRICT),
    ("Mistral", MISTRAL_SYSTEM_IN_USER, "gpt-2", INST, "<s>", "</s>", False, STRICT),
    ("Mistral, plain marks", MISTRAL_NO_SYSTEM, "gpt-2", INST[:2], "<s>", "</s>", False, STRICT),
    ("Mistral, system prompt", MISTRAL_SYSTEM_PROMPT, "llama-bpe",
     [*INST, "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"], "<s>", "</s>", False, STRICT),
    ("Zephyr, plain marks", ZEPHYR, "gpt-2", ["</s>"], None, "</s>", False, ANY),
    ("Zephyr, plain marks, Llama 3 words", ZEPHYR, "llama-bpe", ["</s>"], None, "</s>", False, ANY),
    ("Zephyr", ZEPHYR, "smollm", ["</s>", *TAGS], None, "</s>", False, ANY),
    ("Phi-3", PHI3, "gpt-2", ["<|end|>", *TAGS], None, "<|end|>", False, ANY),
]


def raise_exception(message):
    raise ValueError(message)


class Oracle:
    def __init__(self, template, bpe, control_ids, bos, eos, trims):
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = raise_exception
        self._template = environment.from_string(template)
        self._bpe = bpe
        self._control_ids = control_ids
        self._control = re.compile("(" + "|".join(map(re.escape, control_ids)) + ")")
        self._bos, self._eos, self._trims = bos, eos, trims

    def _mark(self, message):
        content = message["content"]
        for plain, hidden in HIDDEN.items():
            content = content.replace(plain, hidden)
        if message["role"] == "assistant":
            spaces = len(content) - len(content.lstrip()) if self._trims else 0
            content = content[:spaces] + SEAM + content[spaces:]
        return {"role": message["role"], "content": content}

    def render(self, messages, prompt):
        text = self._template.render(
            messages=[self._mark(m) for m in messages], add_generation_prompt=prompt,
            bos_token=self._bos, eos_token=self._eos)
        ids = []
        for part in self._control.split(text):
            if part in self._control_ids:
                ids.append(self._control_ids[part])
            else:
                for run in part.split(SEAM):
                    for plain, hidden in HIDDEN.items():
                        run = run.replace(hidden, plain)
                    ids += self._bpe.encode(run, add_special_tokens=False).ids
        return ids


def conversation(strings, roles):
    rng = strings.random
    count = rng.randint(1, 6)
    if roles == STRICT:
        names = ["user", "assistant"] * 3
    else:
        names = rng.choices(["user", "assistant", "user", "assistant", "system"], k=count)
    messages = [{"role": name, "content": content(strings)} for name in names[:count]]
    if rng.random() < 0.4:
        messages.insert(0, {"role": "system", "content": content(strings)})
    return messages


def content(strings):
    if strings.random.random() < 0.05:
        return strings.random.choice(["", " ", "\n", "\n\n \u3000"])
    return strings.next()


def check_render(tool, oracle, messages, prompt):
    """Equal ids, or both refuse."""
    try:
        expected = oracle.render(messages, prompt)
    except ValueError:
        expected = None
    try:
        actual = tool.render_start(messages, prompt)
    except ValueError as error:
        assert "content.chat.messages[" in str(error), error
        actual = None
    if actual != expected:
        print(f"FAIL {messages!r} prompt={prompt}\n  expected {expected}\n  actual   {actual}")
    return actual == expected, actual is not None


def check_growth(tool, messages, prompt, trims):
    """Turn by turn as a session grows, against all at once."""
    if trims:
        messages = [dict(m, content=m["content"].strip()) if m["role"] == "assistant" else m
                    for m in messages]
    whole = tool.render_start(messages, prompt)
    answers = [i for i, m in enumerate(messages) if m["role"] == "assistant" and i > 0]
    session, begin = [], 0
    for end in answers:
        session += extend(tool, session, messages[begin:end], True)
        session += tool.encode(messages[end]["content"].encode())
        begin = end + 1
    session += extend(tool, session, messages[begin:], prompt)
    if session != whole:
        print(f"FAIL growing {messages!r} prompt={prompt}\n  whole   {whole}\n  session {session}")
    return session == whole


def extend(tool, session, messages, prompt):
    if not session:
        return tool.render_start(messages, prompt)
    return tool.closing(session) + tool.render_next(messages, prompt)


def check_case(case, tool_path, model, vocabulary, strings, count):
    name, template, pre, added, bos, eos, trims, roles = case
    template = template or vocabulary.chat_template
    tokens = vocabulary.tokens + added
    control_ids = {t: i for i, t in enumerate(tokens)
                   if i >= len(vocabulary.tokens) or vocabulary.types[i] == 3}
    bos = bos or vocabulary.tokens[vocabulary.bos]
    eos = eos or vocabulary.tokens[vocabulary.eos]
    oracle = Oracle(template, oracles(vocabulary)[pre], control_ids, bos, eos, trims)
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", newline="", delete=False) as file:
        file.write(template)
    try:
        tool = TokenizeTool(tool_path, model, f"pre={pre}", f"template_file={file.name}",
                            *(f"special={token}" for token in added), f"bos={bos}", f"eos={eos}")
        failures = rendered = 0
        for _ in range(count):
            messages = conversation(strings, roles)
            prompt = strings.random.random() < 0.7
            equal, accepted = check_render(tool, oracle, messages, prompt)
            failures += not equal
            if accepted:
                rendered += 1
                failures += not check_growth(tool, messages, prompt, trims)
        tool.close()
    finally:
        os.unlink(file.name)
    print(f"{name}: {count} conversations, {rendered} rendered, {failures} failures")
    return failures + (rendered < count // 4)


def main():
    tool_path, model = sys.argv[1:3]
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 300
    vocabulary = Vocabulary(model)
    strings = Strings(SEED)
    sys.exit(sum(check_case(c, tool_path, model, vocabulary, strings, count) for c in CASES) > 0)


if __name__ == "__main__":
    main()
