'use strict';
(() => {
  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId('data').textContent);
  const names = data.names, kinds = data.kinds, flat = data.nodes;
  const count = flat.length / 4;
  const canvas = byId('canvas'), graph = byId('graph'), room = byId('room'), search = byId('search'), reset = byId('reset'), details = byId('details');
  const context = canvas.getContext('2d');
  const coarse = matchMedia('(pointer: coarse)').matches;
  const still = matchMedia('(prefers-reduced-motion: reduce)');
  const dark = matchMedia('(prefers-color-scheme: dark)');
  const rowHeight = coarse ? 26 : 19;
  const font = '12px ui-monospace, Menlo, Consolas, monospace';

  // The nodes stand a parent before its children, each with all below it; x and width are in the profile's unit.
  const depth = new Uint32Array(count), name = new Uint32Array(count), total = new Float64Array(count), below = new Float64Array(count);
  const x = new Float64Array(count), parent = new Int32Array(count), rows = [];
  {
    const last = [];  // the last node of each depth on the way here
    for (let i = 0; i < count; i++) {
      const d = depth[i] = flat[4 * i];
      name[i] = flat[4 * i + 1];
      total[i] = flat[4 * i + 2];
      below[i] = flat[4 * i + 3];
      parent[i] = d === 0 ? -1 : last[d - 1];
      x[i] = d === 0 ? 0 : last.length > d ? x[last[d]] + total[last[d]] : x[parent[i]];
      last.length = d;
      last[d] = i;
      (rows[d] = rows[d] || []).push(i);
    }
  }
  const all = total[0] || 1;

  // Text for people.
  const percent = (value, of) => {
    const share = 100 * value / of;
    return (share >= 99.95 && value < of ? 99.9 : share < 0.1 && value > 0 ? share.toPrecision(1) : share.toFixed(1)) + ' %';
  };
  const amount = (value) => {
    if (data.unit === 'nanoseconds') return value >= 1e8 ? (value / 1e9).toFixed(2) + ' s' : value >= 1e5 ? (value / 1e6).toFixed(1) + ' ms' : (value / 1e3).toFixed(0) + ' µs';
    if (data.unit === 'bytes') return value >= 1048576 ? (value / 1048576).toFixed(1) + ' MiB' : (value / 1024).toFixed(1) + ' KiB';
    return Math.round(value).toLocaleString('en') + (data.unit === 'count' ? '' : ' ' + data.unit);
  };
  // Three standard errors of a share, never less than three samples.
  const error = (share) => data.effective > 0 ? Math.min(1, Math.max(3 * Math.sqrt(share * (1 - share) / data.effective), 3 / data.effective)) : 1;

  byId('title').textContent = data.title;
  byId('facts').textContent = data.facts.concat(amount(all) + ' of ' + data.type).join(' · ');
  byId('notes').textContent = data.notes.join('\n');
  if (data.leftOut > 0) {
    byId('left-out').hidden = false;
    byId('left-out').textContent = 'To keep this file small, the ' + data.leftOut.toLocaleString('en') + ' smallest frames (each at most ' + percent(data.smallest, all) +
      ' of all) are left out; together they are ' + percent(data.leftOutTime, all) + '. Their callers keep their full width.';
  }

  // What is seen: the frame zoomed to, and where the view stands while it moves there.
  let zoomed = 0, from = 0, to = total[0], selected = -1, hovered = -1, words = '', matches = null, order = [], next = 0, moving = 0;
  let width = 0, height = 0, letter = 7, colors = {};

  const hash = (text) => {
    let h = 2166136261;
    for (let i = 0; i < text.length; i++) h = Math.imul(h ^ text.charCodeAt(i), 16777619);
    return (h >>> 0) / 4294967296;
  };
  const palette = () => {
    const night = dark.matches;
    // By kind: hue, its spread, saturation, lightness, its spread.
    const kindsOf = night ? [[30, 14, 62, 42, 8], [205, 12, 30, 40, 8], [262, 14, 22, 46, 8], [220, 0, 5, 38, 4]]
      : [[32, 14, 88, 66, 9], [205, 14, 46, 76, 8], [262, 16, 38, 80, 7], [220, 0, 6, 82, 4]];
    colors = {
      back: night ? '#14171b' : '#ffffff', text: night ? '#f3f4f6' : '#1b1f24', edge: night ? '#ffffff' : '#000000', match: night ? '#d0318f' : '#f06abf',
      of: names.map((text, i) => {
        const [hue, spread, saturation, light, lightSpread] = kindsOf[+kinds[i]], a = hash(text), b = hash(text + ' ');
        return 'hsl(' + (hue + (a - .5) * 2 * spread).toFixed(0) + ' ' + saturation + '% ' + (light + (b - .5) * 2 * lightSpread).toFixed(0) + '%)';
      }),
    };
  };

  const draw = () => {
    const scale = devicePixelRatio || 1, top = graph.scrollTop, per = width / Math.max(to - from, 1e-9);
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.fillStyle = colors.back;
    context.fillRect(0, 0, width, height);
    context.font = font;
    context.textBaseline = 'middle';
    const first = Math.floor(top / rowHeight), end = Math.min(rows.length, Math.ceil((top + height) / rowHeight));
    for (let d = first; d < end; d++) {
      const row = rows[d], y = d * rowHeight - top;
      let low = 0, high = row.length;
      while (low < high) {
        const middle = low + high >> 1;
        if (x[row[middle]] + total[row[middle]] <= from) low = middle + 1; else high = middle;
      }
      for (let k = low; k < row.length; k++) {
        const i = row[k];
        if (x[i] >= to) break;
        const left = Math.max(0, (x[i] - from) * per), right = Math.min(width, (x[i] + total[i] - from) * per), w = right - left;
        if (w < .35) continue;
        const hit = matches !== null && matches[name[i]] === 1;
        context.globalAlpha = matches !== null && !hit ? .35 : d < depth[zoomed] ? .6 : 1;
        context.fillStyle = hit ? colors.match : colors.of[name[i]];
        context.fillRect(left, y, w > 3 ? w - 1 : w, rowHeight - 1);
        if (i === selected || i === hovered) {
          context.globalAlpha = 1;
          context.strokeStyle = colors.edge;
          context.lineWidth = i === selected ? 2 : 1;
          context.strokeRect(left + 1, y + 1, Math.max(1, w - 3), rowHeight - 3);
        }
        const room = Math.floor((w - 8) / letter);
        if (room < 2) continue;
        const text = names[name[i]];
        context.globalAlpha = matches !== null && !hit ? .6 : 1;
        context.fillStyle = colors.text;
        context.fillText(text.length <= room ? text : text.slice(0, room - 1) + '…', left + 4, y + rowHeight / 2);
      }
    }
    context.globalAlpha = 1;
  };

  const say = (i) => {
    details.textContent = '';
    if (i < 0) i = zoomed;
    const add = (tag, text) => { const e = document.createElement(tag); e.textContent = text; details.append(e); };
    add('b', names[name[i]]);
    add('span', 'total ' + amount(total[i]) + ', ' + percent(total[i], all));
    add('span', 'self ' + amount(total[i] - below[i]) + ', ' + percent(total[i] - below[i], all));
    if (zoomed > 0 && i !== zoomed && depth[i] > depth[zoomed]) add('span', percent(total[i], total[zoomed]) + ' of the frame zoomed to');
  };

  const show = (i) => {  // scrolls so that the frame's row is seen
    const y = depth[i] * rowHeight;
    if (y < graph.scrollTop) graph.scrollTop = y;
    if (y + rowHeight > graph.scrollTop + height) graph.scrollTop = y + rowHeight - height;
  };

  const zoom = (i) => {
    zoomed = i;
    reset.disabled = zoomed === 0;
    const a = from, b = to, start = performance.now(), time = still.matches ? 0 : 160;
    cancelAnimationFrame(moving);
    const step = (now) => {
      const t = time === 0 ? 1 : Math.min(1, Math.max(0, (now - start) / time)), ease = 1 - (1 - t) * (1 - t);
      from = a + (x[i] - a) * ease;
      to = b + (x[i] + total[i] - b) * ease;
      draw();
      if (t < 1) moving = requestAnimationFrame(step);
    };
    step(time === 0 ? start : start);
    show(i);
    say(i);
    document.documentElement.dataset.zoomed = names[name[i]];
  };

  const at = (event) => {  // the frame under the pointer, or -1
    const box = canvas.getBoundingClientRect();
    const row = rows[Math.floor((event.clientY - box.top + graph.scrollTop) / rowHeight)], where = from + (event.clientX - box.left) * (to - from) / width;
    if (!row) return -1;
    let low = 0, high = row.length;
    while (low < high) {
      const middle = low + high >> 1;
      if (x[row[middle]] + total[row[middle]] <= where) low = middle + 1; else high = middle;
    }
    return low < row.length && x[row[low]] <= where ? row[low] : -1;
  };

  const find = (text) => {
    words = text.toLowerCase();
    matches = null;
    order = [];
    next = 0;
    if (words !== '') {
      matches = new Uint8Array(names.length);
      for (let i = 0; i < names.length; i++) matches[i] = names[i].toLowerCase().includes(words) ? 1 : 0;
      // Outermost matches only, so that nothing counts twice.
      let sum = 0, inside = -1;
      for (let i = 0; i < count; i++) {
        if (inside >= 0 && depth[i] > depth[inside]) continue;
        inside = -1;
        if (i > 0 && matches[name[i]] === 1) {
          inside = i;
          order.push(i);
          sum += total[i];
        }
      }
      order.sort((a, b) => total[b] - total[a]);
      byId('matched').textContent = order.length === 0 ? 'nothing found' : percent(sum, all) + ' of all matches';
    } else {
      byId('matched').textContent = '';
    }
    document.documentElement.dataset.matched = order.length;
    table();
    draw();
  };

  // The table.
  let by = 'own';
  const table = () => {
    const body = byId('rows'), fresh = document.createDocumentFragment();
    const lines = data.table.filter((line) => words === '' || line[2].toLowerCase().includes(words));
    if (by === 'total') lines.sort((a, b) => b[1] - a[1]); else lines.sort((a, b) => b[0] - a[0]);
    for (const [own, whole, text, where, library] of lines) {
      const tr = document.createElement('tr');
      const cell = (kind, content) => { const td = document.createElement('td'); td.className = kind; td.textContent = content; tr.append(td); return td; };
      cell('n', percent(own, all));
      cell('n', (100 * error(own / all)).toFixed(1));
      cell('n', percent(whole, all));
      cell('n cores', data.seconds > 0 && data.unit === 'nanoseconds' ? Math.round(own / 1e6 / data.seconds) + 'm' : '');
      const td = cell('name', ''), button = document.createElement('button'), small = document.createElement('small');
      button.type = 'button';
      button.textContent = text + (library ? ' [library]' : '');
      button.addEventListener('click', () => { search.value = text; find(text); scrollTo(0, 0); });
      small.textContent = where;
      td.append(button, small);
      cell('where', where);
      fresh.append(tr);
    }
    body.replaceChildren(fresh);
    byId('none').hidden = lines.length > 0;
    byId('by-own').setAttribute('aria-pressed', by === 'own');
    byId('by-total').setAttribute('aria-pressed', by === 'total');
  };
  for (const column of ['own', 'total']) byId('by-' + column).addEventListener('click', () => { by = column; table(); });

  const resize = () => {
    const scale = devicePixelRatio || 1;
    width = graph.clientWidth;
    const content = rows.length * rowHeight;
    height = Math.max(rowHeight, Math.min(content, Math.floor(innerHeight * (innerWidth <= 640 ? .6 : .68))));
    room.style.height = Math.max(0, content - height) + 'px';
    canvas.style.height = height + 'px';
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    context.font = font;
    letter = context.measureText('MMMMMMMMMM').width / 10;
    draw();
  };

  // Pointer.
  canvas.addEventListener('pointermove', (event) => {
    if (event.pointerType === 'touch') return;
    const i = at(event);
    if (i !== hovered) { hovered = i; say(i); draw(); }
  });
  canvas.addEventListener('pointerleave', () => { hovered = -1; say(selected); draw(); });
  canvas.addEventListener('click', (event) => {
    const i = at(event);
    if (i < 0) return;
    selected = i;
    zoom(i);
  });
  reset.addEventListener('click', () => { selected = -1; zoom(0); });
  graph.addEventListener('scroll', draw, { passive: true });
  search.addEventListener('input', () => find(search.value));

  // Keys.
  const choose = (i) => {
    if (i === undefined || i < 0) return;
    // Never a frame that the zoom hides.
    if (x[i] + total[i] <= x[zoomed] || x[i] >= x[zoomed] + total[zoomed]) return;
    selected = i;
    show(i);
    say(i);
    draw();
  };
  const children = (i) => {
    const found = [];
    for (let k = i + 1; k < count && depth[k] > depth[i]; k++) if (depth[k] === depth[i] + 1) found.push(k);
    return found;
  };
  addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = document.activeElement === search, current = selected < 0 ? zoomed : selected;
    if (event.key === '/' && !typing) {
      search.focus();
      search.select();
    } else if (event.key === 'Escape') {
      if (words !== '') { search.value = ''; find(''); search.blur(); } else { search.blur(); selected = -1; zoom(0); }
    } else if (event.key === 'Enter' && typing) {
      if (order.length > 0) { selected = order[next % order.length]; next++; zoom(selected); }
    } else if (typing || (document.activeElement && document.activeElement.tagName === 'BUTTON')) {
      return;
    } else if (event.key === 'Enter') {
      zoom(current);
    } else if (event.key === 'Backspace') {
      if (zoomed > 0) { selected = parent[zoomed]; zoom(selected); }
    } else if (event.key === 'ArrowDown') {
      choose(children(current)[0]);
    } else if (event.key === 'ArrowUp') {
      choose(parent[current]);
    } else if (event.key === 'ArrowLeft' || event.key === 'ArrowRight') {
      const row = rows[depth[current]];
      choose(row[row.indexOf(current) + (event.key === 'ArrowLeft' ? -1 : 1)]);
    } else {
      return;
    }
    event.preventDefault();
  });

  palette();
  dark.addEventListener('change', () => { palette(); draw(); });
  table();
  reset.disabled = true;
  say(0);
  new ResizeObserver(resize).observe(graph);
  addEventListener('resize', resize);
  resize();
  document.documentElement.dataset.frames = count;
  requestAnimationFrame(() => setTimeout(() => { document.documentElement.dataset.painted = performance.now().toFixed(1); }));
})();
