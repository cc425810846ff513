// Questions that everything else waits for. Each has a dialog of its own, made for it and gone with it: how
// one has ended is told a task later, and must not answer another that was opened meanwhile.

/** Show what the template of this id holds, once `fill` has had it; resolves, when it is closed, to it. */
async function answered(templateId, fill = () => {}) {
  const dialog = document.getElementById(templateId).content.firstElementChild.cloneNode(true);
  fill(dialog);
  document.body.append(dialog);
  dialog.showModal();
  await new Promise((resolve) => dialog.addEventListener("close", resolve, { once: true }));
  dialog.remove();
  return dialog;
}

/** Ask before something is done that cannot be taken back. */
export async function confirmed({ title, text, deed }) {
  const dialog = await answered("confirm-question", (made) => {
    made.setAttribute("aria-label", title);
    made.querySelector("h2").textContent = title;
    made.querySelector("p").textContent = text;
    made.querySelector("[value=yes]").textContent = deed;
  });
  return dialog.returnValue === "yes";
}

/** The reader's API key; empty where none was given. `isRefused`: the one that was given is none. */
export async function keyAsked(isRefused) {
  const dialog = await answered("key-question", (made) => {
    made.querySelector(".refused").hidden = !isRefused;
  });
  return dialog.querySelector("input").value.trim();
}
