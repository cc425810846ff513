// The page's few signs as SVG nodes, so that they look the same with every font.

const NAMESPACE = "http://www.w3.org/2000/svg";
const PATHS = {
  plus: "M12 5v14M5 12h14",
  close: "M6 6l12 12M18 6L6 18",
  menu: "M4 7h16M4 12h16M4 17h16",
  up: "M12 19V5M6 11l6-6 6 6",
  down: "M12 5v14M6 13l6 6 6-6",
  pencil: "M4 20l1-4L16.5 4.5a1.8 1.8 0 0 1 2.6 0l.4.4a1.8 1.8 0 0 1 0 2.6L8 19z",
  parts: "M4 6h16M4 12h10M4 18h13",
  again: "M20 11a8 8 0 1 0-2.3 6.2M20 4v7h-7",
  copy: "M9 9h11v11H9zM15 9V4H4v11h5",
  done: "M5 12.5l5 5L19 7",
  left: "M14.5 6l-6 6 6 6",
  right: "M9.5 6l6 6-6 6",
  people: "M9 11a3.2 3.2 0 1 0 0-6.4A3.2 3.2 0 0 0 9 11zM3 19c.6-3 3-4.6 6-4.6s5.4 1.6 6 4.6M16 5a3 3 0 0 1 0 5.8M17.5 14.7c1.9.6 3.1 2 3.5 4.3",
  person: "M12 11.5a3.7 3.7 0 1 0 0-7.4 3.7 3.7 0 0 0 0 7.4zM5 20c.7-3.4 3.5-5.2 7-5.2s6.3 1.8 7 5.2",
  bring: "M12 4v11M7.5 10.5L12 15l4.5-4.5M5 19.5h14",
  send_out: "M12 15V4M7.5 8.5L12 4l4.5 4.5M5 19.5h14",
  person_note: "M10 11a3.4 3.4 0 1 0 0-6.8 3.4 3.4 0 0 0 0 6.8zM3.5 19.5c.6-3.2 3.2-4.9 6.5-4.9 1 0 2 .2 2.8.5M15 19.5l.5-2.2 4-4a1.2 1.2 0 0 1 1.7 1.7l-4 4z",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
};

/** One sign, hidden from screen readers: its button carries the label. */
export function icon(name) {
  const svg = document.createElementNS(NAMESPACE, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(NAMESPACE, "path");
  path.setAttribute("d", PATHS[name]);
  svg.append(path);
  return svg;
}

/** A button that shows one sign. */
export function iconButton(name, label, className, onClick) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = className;
  button.title = label;
  button.setAttribute("aria-label", label);
  button.append(icon(name));
  button.addEventListener("click", onClick);
  return button;
}

/** Give the buttons of the document their signs: `data-icon="name"`. */
export function fillIcons() {
  for (const place of document.querySelectorAll("[data-icon]")) {
    place.prepend(icon(place.dataset.icon));
  }
}
