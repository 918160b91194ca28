// Sets the theme before the first paint: the stored choice, or else the preference of the system.
(() => {
  let stored = null;
  try { stored = localStorage.getItem('turnout-theme'); } catch {
    /* storage is blocked: use the preference of the system */
  }
  const dark = stored ? stored === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  document.documentElement.dataset.theme = dark ? 'dark' : 'light';
})();
