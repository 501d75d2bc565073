// @ts-check
/** Light or dark before anything is drawn: as chosen in this browser, else as the system has it. */
(() => {
  const dark = matchMedia('(prefers-color-scheme: dark)');
  const apply = () => {
    let chosen;
    try {
      chosen = localStorage.getItem('jobqueue-theme');
    } catch {
      // What is not kept is not known.
    }
    document.documentElement.dataset.theme = chosen || (dark.matches ? 'dark' : 'light');
  };
  dark.addEventListener('change', apply);
  addEventListener('storage', apply);
  addEventListener('theme', apply);
  apply();
})();
