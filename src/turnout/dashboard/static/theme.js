// Sets light or dark before the first paint: what was chosen here before, else what the system prefers.
(() => {
  let kept = null;
  try { kept = localStorage.getItem('turnout-theme'); } catch {
    /* storage is refused: the system decides */
  }
  const dark = kept ? kept === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  document.documentElement.dataset.theme = dark ? 'dark' : 'light';
})();
