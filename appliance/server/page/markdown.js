// A little markdown as DOM nodes: paragraphs, lists, headings, code, bold, italics. Builds text nodes
// only, so nothing in a message can become markup. Links stay text.

const FENCE = /^\s*```(.*)$/;
const BULLET = /^\s*[-*•]\s+(.*)$/;
const NUMBER = /^\s*(\d{1,9})[.)]\s+(.*)$/;
const HEADING = /^#{1,6}\s+(.*)$/;
const INLINE = /`([^`\n]+)`|\*\*([^*\n]+)\*\*|\*([^*\s][^*\n]*)\*/g;

export function render(text) {
  const fragment = document.createDocumentFragment();
  const lines = text.split("\n");
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) at += 1;
    else if (FENCE.test(lines[at])) at = code(lines, at, fragment);
    else if (BULLET.test(lines[at])) at = list(lines, at, fragment, "ul", BULLET, 1);
    else if (NUMBER.test(lines[at])) at = list(lines, at, fragment, "ol", NUMBER, 2);
    else if (HEADING.test(lines[at])) {
      fragment.append(inline(lines[at].match(HEADING)[1], document.createElement("h3")));
      at += 1;
    } else at = paragraph(lines, at, fragment);
  }
  return fragment;
}

function code(lines, start, parent) {
  let end = start + 1;
  while (end < lines.length && !FENCE.test(lines[end])) end += 1;
  const block = document.createElement("pre");
  block.tabIndex = 0;
  const inner = document.createElement("code");
  inner.textContent = lines.slice(start + 1, end).join("\n");
  block.append(inner);
  parent.append(block);
  return end + 1;
}

function list(lines, start, parent, tag, pattern, group) {
  const element = document.createElement(tag);
  if (tag === "ol") element.start = Number(lines[start].match(pattern)[1]);
  let at = start;
  for (; at < lines.length && pattern.test(lines[at]); at += 1) {
    element.append(inline(lines[at].match(pattern)[group], document.createElement("li")));
  }
  parent.append(element);
  return at;
}

function paragraph(lines, start, parent) {
  const element = document.createElement("p");
  let at = start;
  for (; at < lines.length && lines[at].trim(); at += 1) {
    if (at > start && [FENCE, BULLET, NUMBER, HEADING].some((block) => block.test(lines[at]))) break;
    if (at > start) element.append(document.createElement("br"));
    inline(lines[at], element);
  }
  parent.append(element);
  return at;
}

function inline(text, parent) {
  let last = 0;
  for (const match of text.matchAll(INLINE)) {
    parent.append(text.slice(last, match.index));
    const [tag, content] =
      match[1] !== undefined ? ["code", match[1]] : match[2] !== undefined ? ["strong", match[2]] : ["em", match[3]];
    const element = document.createElement(tag);
    element.textContent = content;
    parent.append(element);
    last = match.index + match[0].length;
  }
  parent.append(text.slice(last));
  return parent;
}
