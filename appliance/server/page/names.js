// Names that strangers have written, safe in a line of other text. Pure; never touches the page.

// Controls, and the marks that turn the direction of what follows them: one in a name would turn the line.
const UNSEEN = /[\p{Cc}\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/gu;

/** The name without what cannot be seen; the elements that show it keep its direction to themselves. */
export function shownName(text) {
  return text.replace(UNSEEN, "");
}
