// Keeps the overview as it is: takes each new version of it from the daemon, and changes what differs. Elements
// stay where they are, and so does the focus. Without this script the page is shown as it was when it was loaded.
'use strict';

(() => {
  const main = document.querySelector('main[data-live]');
  const state = document.getElementById('state');
  const pause = document.getElementById('pause');
  if (!main || !state || !pause) return;

  const key = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.getAttribute('data-key') : null);

  // Makes `old` like `now`, which is of the same kind.
  const morph = (old, now) => {
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data !== now.data) old.data = now.data;
      return;
    }
    for (const { name } of [...old.attributes]) {
      if (!now.hasAttribute(name)) old.removeAttribute(name);
    }
    for (const { name, value } of now.attributes) {
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    if (old.isEqualNode(now)) return;
    const wanted = [...now.childNodes];
    // What is gone goes first: then what stays need not be moved, which would take the focus from it.
    const names = new Set(wanted.map(key));
    for (const child of [...old.children]) {
      if (key(child) !== null && !names.has(key(child))) child.remove();
    }
    wanted.forEach((child, index) => {
      const name = key(child);
      let here = old.childNodes[index];
      if (name !== null) {
        // What has a key is moved, and never made into something else: a link must not change under the focus.
        const same = [...old.children].find((other) => key(other) === name);
        if (same && same !== here) old.insertBefore(same, here || null);
        here = same;
      } else if (here && (here.nodeName !== child.nodeName || key(here) !== null)) {
        here = undefined;
      }
      if (here) {
        morph(here, child);
      } else {
        old.insertBefore(document.importNode(child, true), old.childNodes[index] || null);
      }
    });
    while (old.childNodes.length > wanted.length) old.lastChild.remove();
  };

  const say = (text, lost) => {
    if (state.textContent !== text) state.textContent = text;
    main.classList.toggle('lost', lost);
  };

  let source;
  let later;

  const connect = () => {
    source = new EventSource(main.dataset.live);
    source.addEventListener('page', (event) => {
      const now = new DOMParser().parseFromString(event.data, 'text/html').querySelector('main');
      const focus = document.activeElement;
      if (now) morph(main, now);
      if (focus !== document.activeElement && focus.isConnected) focus.focus({ preventScroll: true });
      say('Live: what changes is shown at once.', false);
    });
    source.addEventListener('error', () => {
      say('Not live: the daemon does not answer, or the session is over. What is shown may be old.', true);
      if (source.readyState === EventSource.CLOSED) later = setTimeout(connect, 5000);
    });
  };

  // What changes by itself can be kept as it is, to be read.
  pause.addEventListener('click', () => {
    const paused = pause.getAttribute('aria-pressed') !== 'true';
    pause.setAttribute('aria-pressed', String(paused));
    clearTimeout(later);
    source.close();
    if (paused) {
      say(`Paused: what is shown is of ${new Date().toLocaleTimeString()}.`, main.classList.contains('lost'));
    } else {
      connect();
    }
  });
  pause.hidden = false;
  connect();
})();
