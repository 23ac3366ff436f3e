// Filters rows and plots by text and by verdict, sorts tables by a column, and saves the page's data.
"use strict";
const text = document.getElementById("filter");
const changed = document.getElementById("changed");
function show() {
  const wanted = text.value.toLowerCase();
  for (const element of document.querySelectorAll("tbody tr, figure")) {
    const named = element.textContent.toLowerCase().includes(wanted);
    const judged = !changed.checked || element.tagName === "FIGURE" || element.querySelector(".better, .worse");
    element.hidden = !(named && judged);
  }
  if (wanted) document.querySelectorAll("details").forEach(fold => { fold.open = true; });
}
// What a link names is shown, with all that it is folded into.
function unfold() {
  const element = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!element) return;
  if (element.tagName === "ARTICLE") element.querySelector("details").open = true;
  for (let at = element; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
  element.scrollIntoView();
}
window.addEventListener("hashchange", unfold);
unfold();
text.addEventListener("input", show);
changed.addEventListener("change", show);
for (const head of document.querySelectorAll("thead th")) {
  head.tabIndex = 0;
  const sort = () => {
    const column = head.cellIndex, body = head.closest("table").tBodies[0];
    const down = head.dataset.down !== "1";
    const value = row => parseFloat((row.cells[column].textContent.match(/-?[\d.]+(e-?\d+)?/) || ["NaN"])[0]);
    const rows = [...body.rows].sort((a, b) => (down ? value(b) - value(a) : value(a) - value(b)) || 0);
    head.dataset.down = down ? "1" : "0";
    body.append(...rows);
  };
  head.addEventListener("click", sort);
  head.addEventListener("keydown", event => { if (event.key === "Enter") sort(); });
}
document.getElementById("save").addEventListener("click", () => {
  const data = document.getElementById("data").textContent;
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([data], { type: "application/json" }));
  link.download = "framewright.json";
  link.click();
});
