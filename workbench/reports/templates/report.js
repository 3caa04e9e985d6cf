"use strict";
const form = document.querySelector(".filters");
if (form) {
  const rows = [...document.querySelectorAll("#responses tbody tr")];
  const words = rows.map((row) => row.textContent.toLowerCase());
  const count = document.getElementById("count");
  const filter = () => {
    const text = form.elements.text.value.toLowerCase();
    const chosen = [...form.querySelectorAll("select")].filter((select) => select.value);
    let shown = 0;
    rows.forEach((row, i) => {
      const fits = words[i].includes(text) && chosen.every((select) => row.dataset[select.name] === select.value);
      row.hidden = !fits;
      shown += fits;
    });
    count.textContent = `${shown} of ${rows.length} responses`;
  };
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  filter();
}
