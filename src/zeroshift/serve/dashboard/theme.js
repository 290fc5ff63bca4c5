// In the head and not a module, so that the page is never drawn in the wrong colours first.
"use strict";
(() => {
  const stored = localStorage.getItem("zeroshift-theme");
  if (stored === "light" || stored === "dark") document.documentElement.dataset.theme = stored;
})();
