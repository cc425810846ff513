// A character's picture as a DOM node. Never calls the server: what fetches an image is handed in.

import { icon } from "/page/icons.js";

/** A character's picture: its first letter until the image is there, and where there is none. */
export function portrait(character, portraitOf) {
  const box = document.createElement("span");
  box.className = "portrait";
  box.setAttribute("aria-hidden", "true");
  const letter = [...character.name.trim()][0];
  if (letter) box.textContent = letter.toUpperCase();
  else box.append(icon("person"));
  box.style.setProperty("--hue", String(hueOf(character.id)));
  if (character.avatar) {
    portraitOf(character).then((url) => {
      if (!url) return;
      const image = document.createElement("img");
      image.alt = "";
      image.addEventListener("load", () => box.replaceChildren(image), { once: true });
      image.src = url;
    });
  }
  return box;
}

function hueOf(text) {
  let hash = 7;
  for (const character of text) hash = (hash * 31 + character.codePointAt(0)) % 360;
  return hash;
}
