// The only text that becomes markup is a page of this origin, which the server has escaped.
const policy = window.trustedTypes?.createPolicy("penstock", {createHTML: text => text}) ?? {createHTML: text => text};

// sync makes the parts with data-live equal to those of a page. Equal nodes stay, and with them the
// focus, the selection and open details.
export function sync(document, text) {
  const page = new DOMParser().parseFromString(policy.createHTML(text), "text/html");
  for (const part of document.querySelectorAll("[data-live]")) {
    const next = page.getElementById(part.id);
    if (next) equalize(part, next);
  }
}

// Attributes that only the browser sets. The pages of the server lack them.
const own = new Set(["open", "data-submits"]);

function equalize(node, next) {
  if (node.nodeType === Node.TEXT_NODE) {
    if (node.data !== next.data) node.data = next.data;
    return;
  }
  for (const {name} of [...node.attributes]) {
    if (!next.hasAttribute(name) && !own.has(name)) node.removeAttribute(name);
  }
  for (const {name, value} of next.attributes) {
    if (node.getAttribute(name) !== value && !own.has(name)) node.setAttribute(name, value);
  }
  const children = [...next.childNodes];
  while (node.childNodes.length > children.length) node.lastChild.remove();
  children.forEach((child, i) => {
    const old = node.childNodes[i];
    if (!old) node.append(document.importNode(child, true));
    else if (old.nodeType === child.nodeType && old.nodeName === child.nodeName) equalize(old, child);
    else old.replaceWith(document.importNode(child, true));
  });
}
