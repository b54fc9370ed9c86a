"""What a browser says of a page's words: their contrast, and in a drawing those that are cut off or lie on each other."""

LEAST = 4.5  # WCAG 2.2, of text of any size

# of every piece of text below the elements that arguments[0] selects: its words, its tag, and the contrast to what lies behind it
CONTRASTS = """
const rgba = s => { const n = (s.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number); return [n[0], n[1], n[2], n.length > 3 ? n[3] : 1] };
const over = (a, b) => [0, 1, 2].map(i => a[i] * a[3] + b[i] * (1 - a[3])).concat(1);
const light = c => { const l = c.slice(0, 3).map(v => v / 255).map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
  return .2126 * l[0] + .7152 * l[1] + .0722 * l[2] };
const shapes = text => {  // of a drawing, painted before the text and behind its middle
  const at = text.getBoundingClientRect(), middle = new DOMPoint(at.left + at.width / 2, at.top + at.height / 2);
  return [...text.ownerSVGElement.querySelectorAll("rect, path, polygon, circle, ellipse")].filter(shape =>
    text.compareDocumentPosition(shape) & Node.DOCUMENT_POSITION_PRECEDING && /^rgb/.test(getComputedStyle(shape).fill) &&
    !shape.closest("defs") && shape.isPointInFill(middle.matrixTransform(shape.getScreenCTM().inverse()))) };
const found = [];
for (const root of document.querySelectorAll(arguments[0])) {
  for (const details of root.querySelectorAll("details")) details.open = true;
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, own = node.parentElement, svg = own.ownerSVGElement;
    if (!node.textContent.trim() || own.closest("style, script, title, desc") || !own.getClientRects().length) continue;
    const behind = [];
    for (let e = svg || own; e; e = e.parentElement) behind.push(rgba(getComputedStyle(e).backgroundColor));
    behind.reverse();
    for (const shape of svg ? shapes(own) : []) {
      const fill = rgba(getComputedStyle(shape).fill);
      fill[3] *= getComputedStyle(shape).fillOpacity * getComputedStyle(shape).opacity;
      behind.push(fill);
    }
    const ground = behind.reduce((below, each) => over(each, below), [255, 255, 255, 1]);
    const own_ink = rgba(svg ? getComputedStyle(own).fill : getComputedStyle(own).color);
    for (let e = own; e; e = e.parentElement) own_ink[3] *= getComputedStyle(e).opacity;
    const ink = over(own_ink, ground), a = light(ink), b = light(ground);
    found.push([node.textContent.trim().slice(0, 40), own.tagName, (Math.max(a, b) + .05) / (Math.min(a, b) + .05)]);
  }
}
return found;
"""

# of a drawing that is the whole page: words that reach out of it, and pairs of words that lie on each other
CLASHES = """
const all = document.documentElement.getBoundingClientRect(), texts = [...document.querySelectorAll("text")];
const boxes = texts.map(text => text.getBoundingClientRect()), found = [];
boxes.forEach((box, i) => {
  if (box.left < all.left || box.right > all.right || box.top < all.top || box.bottom > all.bottom)
    found.push([texts[i].textContent, "is cut off"]);
  for (let j = i + 1; j < boxes.length; j++) {
    const wide = Math.min(box.right, boxes[j].right) - Math.max(box.left, boxes[j].left);
    const high = Math.min(box.bottom, boxes[j].bottom) - Math.max(box.top, boxes[j].top);
    if (wide > 2 && high > .3 * Math.min(box.height, boxes[j].height)) found.push([texts[i].textContent, texts[j].textContent]);
  }
});
return found;
"""


def poor(browser, selector: str) -> dict[tuple[str, str], float]:
    """Words and tag of what has too little contrast, with that; fails where there are no words."""
    found = browser.execute_script(CONTRASTS, selector)
    assert found
    return {(words, tag): round(contrast, 2) for words, tag, contrast in found if contrast < LEAST}
