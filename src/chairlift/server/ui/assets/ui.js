// Shows a server as it is now, beside a chat with its model. Names come from strangers: they are only ever set as text.
(() => {
  const { el, count, percent } = shared, { text, name, time, whole, plural, put, headers, problem, Refused } = tools;
  const POLL_MS = 1000, MAX_RETRY_MS = 5000, ANSWER_MS = 8000;
  const MANY = 48, STALE_S = 2;
  const MAX_QUEUE = 12;
  const byId = (id) => document.getElementById(id);
  const main = byId("live"), notice = byId("notice"), talk = byId("talk"), stateBox = byId("state");
  const keys = { watch: "", chat: "" };
  let live = null, lastSeen = 0, failures = 0, timer = 0, isPaused = false, isAsking = false;

  // ---------------------------------------------------------------- small things

  const short = (id) => (id === null ? "unknown" : id.replace(/^(chat)?cmpl-|^msg_|^resp_/, ""));
  const owner = (one) => one.tenant || one.principal || "";

  function span(value) {
    if (value < 90) return `${Math.round(value)} s`;
    if (value < 5400) return `${Math.round(value / 60)} min`;
    return value < 172800 ? `${Math.round(value / 3600)} h` : `${Math.round(value / 86400)} d`;
  }

  // Puts into `parent` what is in `wanted`, in its order; what is there already stays where it can.
  function arrange(parent, wanted) {
    let next = parent.firstChild;
    for (const node of wanted) {
      if (node === next) next = next.nextSibling;
      else parent.insertBefore(node, next);
    }
    while (next) {
      const gone = next;
      next = next.nextSibling;
      gone.remove();
    }
  }

  // ---------------------------------------------------------------- asking

  async function poll() {
    clearTimeout(timer);
    if (document.hidden || isPaused || isAsking) return;
    isAsking = true;
    try {
      const response = await fetch("ui/live", { headers: headers(keys.watch), cache: "no-store", credentials: "omit", signal: AbortSignal.timeout(ANSWER_MS) });
      if (response.status === 401) return askForKey(keys.watch ? "This key is not one of the server's." : "");
      if (!response.ok) throw new Refused(await problem(response), response.status);
      live = await response.json();
      failures = 0;
      lastSeen = Date.now();
      say("");
      show();
    } catch (error) {
      failures++;
      setState(error.status === 503 ? "loading" : "gone", error.status === 503 ? "not ready" : "no answer");
      const seen = lastSeen ? ` What is shown is from ${span((Date.now() - lastSeen) / 1000)} ago.` : "";
      say((error instanceof Refused ? error.message : "The server does not answer.") + seen);
    } finally {
      isAsking = false;
    }
    timer = setTimeout(poll, Math.min(MAX_RETRY_MS, POLL_MS * Math.max(1, failures)));
  }

  function say(message) {
    notice.hidden = !message;
    put(notice, message);
  }

  function setState(state, words) {
    stateBox.dataset.state = state;
    put(stateBox, words);
  }

  // ---------------------------------------------------------------- figures

  const STATES = { serving: "serving", draining: "stopping", engine_dead: "engine lost, starting another", engine_stalled: "engine hangs" };

  function tile(title, className = "") {
    const box = el("div", { className: `panel tile ${className}` }, text("h3", "", title));
    const figure = text("div", "figure", "–"), more = text("div", "more", "");
    box.append(figure, more);
    return { box, figure, more, set(big, unit, small) {
      figure.replaceChildren(big, ...(unit ? [" ", text("small", "", unit)] : []));
      put(more, small);
    } };
  }

  const tiles = {
    rate: tile("Generating"), running: tile("Running"), ttft: tile("First token"), itl: tile("Between tokens"), cache: tile("Cache", "cache"),
  };
  const used = el("i", { className: "used" }), cached = el("i", { className: "cached" });
  tiles.cache.box.insertBefore(el("div", { className: "stack" }, used, cached), tiles.cache.more);
  const tileRow = el("div", { className: "tiles" }, ...Object.values(tiles).map((one) => one.box));

  const REASONS = { step: "the next step", batch: "a batch", slots: "a slot", blocks: "cache blocks", tokens: "the token budget", prefix: "a beginning that is being computed" };

  function showTiles() {
    const { counts, generates } = live.engines[0], { lately } = live;
    tileRow.hidden = !counts;
    if (!counts) return;
    if (lately) {
      const { rates, ttft_s: ttft, itl_s: itl } = lately;
      tiles.rate.set(whole(generates ? rates.output_tokens : rates.prompt_tokens), "tokens/s",
        `${generates ? `${whole(rates.prompt_tokens)} prompt tokens/s, ` : ""}${count(+rates.steps.toFixed(1))} steps/s`);
      tiles.ttft.box.hidden = tiles.itl.box.hidden = !generates;
      tiles.ttft.set(time(ttft.p50), "p50", ttft.count ? `${time(ttft.p99)} p99, of ${plural(ttft.count, "answer")}` : "none in the last minute");
      tiles.itl.set(time(itl.p50), "p50", itl.count ? `${time(itl.p99)} p99, in the last minute` : "none in the last minute");
    }
    const reasons = Object.entries(counts.waiting_by_reason).map(([reason, number]) => `${count(number)} for ${REASONS[reason] || reason}`);
    tiles.running.set(count(counts.running), `of ${count(counts.max_num_seqs)}`, counts.waiting ? [`${count(counts.waiting)} waiting`, reasons.join(", ")].filter(Boolean).join(": ") : "nobody waits");
    const { blocks } = counts, total = blocks.total || 1;
    used.style.width = `${(100 * blocks.used) / total}%`;
    cached.style.width = `${(100 * blocks.cached) / total}%`;
    tiles.cache.box.hidden = !blocks.total;
    tiles.cache.box.title = `${count(blocks.used)} of ${count(blocks.total)} blocks of ${count(blocks.size)} tokens are in use; ${count(blocks.cached)} that nobody holds can be found again`;
    const more = [`${count(blocks.used)} + ${count(blocks.cached)} kept of ${count(blocks.total)} blocks`];
    if (counts.prefix_queries) more.push(`${percent(counts.prefix_hits / counts.prefix_queries)} of prompts found`);
    if (counts.preemptions) more.push(plural(counts.preemptions, "preemption"));
    tiles.cache.set(percent(blocks.used / total), "in use", more.join(", "));
  }

  // ---------------------------------------------------------------- curves

  function chart(title, entries) {
    const canvas = el("canvas", {});
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", title);
    const legend = el("div", { className: "keyed" }, ...entries.map(([, label, className]) => el("span", { className }, el("i", { textContent: label }))));
    return { box: el("div", { className: "panel" }, text("h3", "", title), canvas, legend), canvas, entries };
  }
  const charts = [
    chart("Tokens per second, the last two minutes", [["output_tokens", "generated", "decode", "--decode", true], ["prompt_tokens", "of prompts", "prefill", "--chunk", false]]),
    chart("Sequences, the last two minutes", [["running", "running", "running", "--held", true], ["waiting", "waiting", "waiting", "--waiting", false]]),
  ];
  const chartRow = el("section", { className: "charts" }, ...charts.map((one) => one.box));

  function draw({ canvas, entries }) {
    const width = canvas.clientWidth, height = canvas.clientHeight, ratio = window.devicePixelRatio || 1;
    if (!width || !live || !live.lately) return;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const context = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
    const color = (variable) => style.getPropertyValue(variable).trim();
    context.scale(ratio, ratio);
    const { series } = live.lately;
    const most = Math.max(2, ...entries.flatMap(([key]) => series[key])), unit = 10 ** Math.floor(Math.log10(most));
    const top = unit * [1, 2, 4, 6, 8, 10].find((factor) => factor * unit >= most);
    const left = 40, bottom = height - 4, scale = (bottom - 8) / top;
    context.font = '11px system-ui, "DejaVu Sans", sans-serif';
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const value of [0, top / 2, top]) {
      const y = Math.round(bottom - value * scale) + 0.5;
      context.fillStyle = color("--grid");
      context.fillRect(left, y - 0.5, width - left, 1);
      context.fillStyle = color("--faint");
      if (Number.isInteger(value)) context.fillText(whole(value), left - 6, Math.min(Math.max(y, 7), height - 6));
    }
    for (const [key, , , variable, isArea] of entries) {
      const values = series[key], step = (width - left) / values.length;
      context.beginPath();
      values.forEach((value, i) => {
        context.lineTo(left + i * step, bottom - value * scale);
        context.lineTo(left + (i + 1) * step, bottom - value * scale);
      });
      context.strokeStyle = context.fillStyle = color(variable);
      context.lineWidth = 1.6;
      context.stroke();
      if (!isArea) continue;
      context.lineTo(width, bottom);
      context.lineTo(left, bottom);
      context.globalAlpha = 0.25;
      context.fill();
      context.globalAlpha = 1;
    }
  }

  // ---------------------------------------------------------------- slots and queue

  const PHASES = { prefill: "prompt", sharing: "shares a prompt", decode: "decode", filler: "filler", waiting: "waiting" };
  const nodes = new Map();

  // `seen` has the keys of this picture so far: clients choose ids, and two requests may have the same.
  function rowNode(row, seen) {
    let key = `${row.id}/${row.choice}`;
    while (seen.has(key)) key += "'";
    seen.add(key);
    let node = nodes.get(key);
    if (!node) {
      const who = name(""), number = text("span", "", ""), bar = el("i", {}), phase = text("span", "", ""), age = text("span", "", "");
      const box = el("button", { type: "button", className: "slot" }, el("span", { className: "who" }, who, number), el("span", { className: "way" }, bar), el("span", { className: "how" }, phase, age));
      node = { box, who, number, bar, phase, age };
      box.addEventListener("click", () => openStory(row.id));
      nodes.set(key, node);
    }
    put(node.who, owner(row) || short(row.id));
    node.box.dataset.phase = row.phase;
    const isPrompt = row.phase === "prefill" || row.phase === "sharing" || row.phase === "waiting" || !row.max_output_tokens;
    put(node.number, isPrompt ? `${count(row.computed_tokens)}/${count(row.prompt_tokens)}` : count(row.output_tokens));
    node.bar.style.width = `${Math.min(100, (100 * (isPrompt ? row.computed_tokens / (row.prompt_tokens || 1) : row.output_tokens / row.max_output_tokens)))}%`;
    put(node.phase, row.slot === null ? PHASES[row.phase] : `slot ${row.slot}, ${PHASES[row.phase]}`);
    put(node.age, span(row.age_s));
    const hint = `${row.id}: ${describe(row)}`;
    if (node.box.title !== hint) node.box.title = hint;
    return node.box;
  }

  function describe(row) {
    const cached = row.cached_tokens ? `, ${count(row.cached_tokens)} of them from the cache` : "";
    const prompt = `${plural(row.prompt_tokens, "prompt token")}${cached}`;
    const again = row.preemptions ? ` Preempted ${row.preemptions === 1 ? "once" : `${row.preemptions} times`} so far.` : "";
    switch (row.phase) {
      case "waiting": return `Waiting for ${time(row.age_s)}; ${plural(row.prompt_tokens, "prompt token")}.${again}`;
      case "sharing": return `In slot ${row.slot} for ${time(row.running_s)}, waiting for another answer of its request to compute their prompt.${again}`;
      case "prefill": return `In slot ${row.slot} for ${time(row.running_s)}; ${count(row.computed_tokens)} of ${prompt} computed.${again}`;
      case "filler": return `Over, and computed in slot ${row.slot} until its batch is over.`;
      default: return `In slot ${row.slot} for ${time(row.running_s)}; ${prompt}; ${count(row.output_tokens)} of at most ${count(row.max_output_tokens)} tokens generated.${again}`;
    }
  }

  const engineBox = el("div", {});
  const engineParts = [];

  function enginePart(number) {
    let part = engineParts[number];
    if (!part) {
      const title = el("h2", {}), slots = el("div", { className: "slots" }), none = text("p", "nothing", "Nobody is being served.");
      const queueTitle = el("h2", {}), queue = el("div", { className: "slots" });
      const legend = el("div", { className: "keyed" }, ...[["prefill", "prompt"], ["decode", "decode"]].map(([className, label]) => el("span", { className }, el("i", { textContent: label }))));
      const queueBox = el("section", {}, queueTitle, queue);
      part = { title, slots, none, queueTitle, queue, queueBox, legend, box: el("div", {}, el("section", {}, title, slots, none), queueBox) };
      engineParts[number] = part;
      engineBox.append(part.box);
    }
    return part;
  }

  function showEngines() {
    const seen = new Set();
    live.engines.forEach((engine, number) => {
      const part = enginePart(number), { counts, running, waiting } = engine;
      const several = live.engines.length > 1 ? ` of ${engine.model}` : "";
      const numRunning = counts ? counts.running : running.length;
      const free = counts ? `${count(Math.max(0, counts.max_num_seqs - counts.running))} free` : "";
      const hidden = Math.max(0, numRunning - running.length);
      const note = [free, hidden && live.sees === "all" ? `${count(hidden)} more are not shown` : "", live.sees === "own" ? "yours only" : "", live.looked_s > STALE_S ? `as of ${span(live.looked_s)} ago` : ""].filter(Boolean).join(", ");
      part.title.replaceChildren(`Slots${several}`, text("small", "", note), ...(running.length ? [part.legend] : []));
      part.slots.classList.toggle("many", running.length > MANY);
      arrange(part.slots, running.map((row) => rowNode(row, seen)));
      part.none.hidden = running.length > 0;
      put(part.none, live.sees === "none" ? "Whose requests they are, an admin key shows." : live.sees === "own" ? "Nothing of yours is being served." : "Nobody is being served.");
      const numWaiting = counts && live.sees === "all" ? counts.waiting : waiting.length;
      part.queueBox.hidden = !waiting.length;
      const shown = waiting.slice(0, MAX_QUEUE);
      part.queueTitle.replaceChildren(`Queue${several}`, text("small", "", numWaiting > shown.length ? `the first ${shown.length} of ${count(numWaiting)}` : plural(numWaiting, "answer")));
      arrange(part.queue, shown.map((row) => rowNode(row, seen)));
    });
    for (const key of nodes.keys()) if (!seen.has(key)) nodes.delete(key);
  }

  // ---------------------------------------------------------------- tables

  function table(head, className) {
    const body = el("tbody", {});
    const row = el("tr", {}, ...head.map(([label, cell]) => el("th", { textContent: label, className: cell || "", scope: "col" })));
    const box = el("section", { className }, el("h2", {}), el("div", { className: "wide" }, el("table", {}, el("thead", {}, row), body)), text("p", "nothing", ""));
    const [title, wide, none] = box.children;
    return { box, body, title, fill(name, note, rows, nothing) {
      title.replaceChildren(name, text("small", "", note));
      wide.hidden = !rows.length;
      none.hidden = rows.length > 0;
      put(none, nothing);
      arrange(body, rows);
    } };
  }
  const cell = (content, className = "") => el("td", { className, textContent: content });
  const nameCell = (content, className) => el("td", { className }, name(content));

  const groupTable = table([["Tenant", "who"], ["running"], ["waiting"], ["ended", "minor"], ["failed", "minor"], ["tokens"], ["TTFT p50"], ["TTFT p99"]]);
  const endedTable = table([["Request"], ["Tenant", "who minor"], ["prompt", "minor"], ["tokens"], ["waited", "minor"], ["first token"], ["total"], ["ended by"], ["ago", "minor"]]);
  const endedRows = new Map();

  function groupName(group) {
    if (group.tenant) return group.principal ? `${group.tenant} (${group.principal})` : group.tenant;
    return group.principal || "(no name)";
  }

  function showTables() {
    groupTable.box.hidden = endedTable.box.hidden = live.sees === "none";
    groupTable.fill("Tenants", "in flight, and of the last requests", live.groups.map((group) => el("tr", {},
      nameCell(groupName(group), "who"), cell(count(group.running)), cell(count(group.waiting)), cell(count(group.ended), "minor"),
      cell(count(group.failed), group.failed ? "bad minor" : "minor"), cell(count(group.output_tokens)), cell(time(group.ttft_p50_s)), cell(time(group.ttft_p99_s)))), "None that is remembered.");
    const known = new Set();
    const rows = live.ended.map((one) => {
      let key = `${one.id}/${one.total_s}/${one.output_tokens}`;
      while (known.has(key)) key += "'";
      known.add(key);
      let found = endedRows.get(key);
      if (!found) {
        const ago = cell("", "minor");
        const isGood = one.ended_by === "stop" || one.ended_by === "length" || one.ended_by === "length, stop";
        const row = el("tr", { tabIndex: 0 }, nameCell(one.id, "id"), nameCell(owner(one), "who minor"), cell(count(one.prompt_tokens), "minor"),
          cell(`${count(one.output_tokens)}${one.choices > 1 ? ` in ${one.choices}` : ""}`), cell(time(one.queue_s), "minor"), cell(time(one.ttft_s)), cell(time(one.total_s)),
          cell(one.ended_by, isGood ? "" : "bad"), ago);
        const open = () => openStory(one.id);
        row.addEventListener("click", open);
        row.addEventListener("keydown", (event) => { if (event.key === "Enter") open(); });
        found = { row, ago };
        endedRows.set(key, found);
      }
      put(found.ago, span(one.ago_s));
      return found.row;
    });
    for (const key of endedRows.keys()) if (!known.has(key)) endedRows.delete(key);
    endedTable.fill("Requests that ended", rows.length ? "choose one to read what became of it" : "", rows, "None that is remembered.");
  }

  // ---------------------------------------------------------------- the story of a request

  const story = byId("story");
  const FACTS = { prompt_tokens: "prompt tokens", cached_tokens: "of them from the cache", chunks: "chunks", recomputed_tokens: "computed again", output_tokens: "tokens generated",
    started_after_s: "started after", first_token_after_s: "first token after", ended_after_s: "ended after" };
  let told = null;

  function openStory(id) {
    if (id === null) return;
    told = { id, ended: false };
    story.replaceChildren(...heading("story-title", id), text("p", "faint", "…"));
    if (!story.open) story.showModal();
    tell();
  }

  function heading(id, title) {
    return [el("h2", { id }, name(title, ""))];
  }

  const closing = () => el("div", { className: "bar" }, el("button", { type: "button", textContent: "Close", onclick: () => story.close() }));

  async function tell() {
    const asked = told;
    let found = [], message = "";
    try {
      const response = await fetch(`ui/requests/${encodeURIComponent(asked.id)}`, { headers: headers(keys.watch), cache: "no-store", credentials: "omit" });
      if (response.ok) found = (await response.json()).data;
      else message = await problem(response);
    } catch {
      message = "The server does not answer.";
    }
    if (told !== asked || !story.open) return;
    asked.ended = !found.some((one) => one.state !== "ended");
    const parts = found.flatMap(storyParts);
    if (message) parts.push(text("p", "", message));
    story.replaceChildren(...heading("story-title", asked.id), ...parts, closing());
    story.dataset.ready = "yes";
  }

  function storyParts(one) {
    const rows = live.engines.flatMap((engine) => [...engine.running, ...engine.waiting]).filter((row) => row.id === one.id);
    const who = [one.tenant && `tenant ${one.tenant}`, one.principal && `key ${one.principal}`, one.priority && `priority ${one.priority}`,
      new Date(1000 * one.created).toLocaleTimeString()].filter(Boolean).join(", ");
    const parts = [el("p", { className: "faint" }, name(who, ""))];
    const many = one.choices.length + rows.length > 1;
    for (const row of one.state === "ended" ? [] : rows) parts.push(text("p", "told", `${many ? `Answer ${row.choice + 1}: ` : ""}${describe(row)}`));
    for (const choice of one.choices) {
      parts.push(text("p", "told", `${many ? `Answer ${choice.index + 1}: ` : ""}${choice.sentence}`));
      parts.push(...times(choice.decisions));
      if (!many) parts.push(facts(choice.decisions));
    }
    if (parts.length === 1) parts.push(text("p", "told", "On its way to the engine."));
    return parts;
  }

  // What its time went to, as a bar: the queue, the prompt, the tokens after the first.
  function times({ started_after_s: started, first_token_after_s: first, ended_after_s: ended }) {
    if (!ended || started === null) return [];
    const spans = [["waiting", "queue", started], ["prefill", "prompt", (first ?? ended) - started], ["decode", "decode", first === null ? 0 : ended - first]].filter(([, , took]) => took > 0);
    const bars = spans.map(([className, , took]) => {
      const bar = el("i", { className });
      bar.style.width = `${(100 * took) / ended}%`;
      return bar;
    });
    const legend = spans.map(([className, label, took]) => el("span", { className }, el("i", { textContent: `${label} ${time(took)}` })));
    return [el("div", { className: "times" }, ...bars), el("div", { className: "keyed" }, ...legend)];
  }

  function facts(decisions) {
    const list = el("dl", {});
    const add = (label, value) => list.append(text("dt", "", label), text("dd", "", value));
    for (const [key, label] of Object.entries(FACTS)) {
      const value = decisions[key];
      if (value) add(label, key.endsWith("_s") ? time(value) : count(value));
    }
    for (const [reason, waited] of Object.entries(decisions.waited_s)) if (waited >= 0.001) add(`waited for ${REASONS[reason] || reason}`, time(waited));
    for (const one of decisions.preemptions) add("preempted by", `${one.by} (${one.reason}), ${one.count} times`);
    return list;
  }
  story.addEventListener("click", (event) => { if (event.target === story) story.close(); });
  story.addEventListener("close", () => { told = null; delete story.dataset.ready; });

  // ---------------------------------------------------------------- keys

  const dialog = byId("keys");
  const whyKey = text("p", "", "");
  const watchKey = el("input", { type: "password", name: "key", autocomplete: "current-password", spellcheck: false });
  const chatKey = el("input", { type: "password", name: "chat-key", autocomplete: "off", spellcheck: false });
  const keyForm = el("form", { method: "dialog" }, el("h2", { id: "keys-title", textContent: "Keys" }), whyKey,
    el("label", {}, text("span", "", "API key: shows your own requests. Or an admin key: shows everybody's."), watchKey),
    el("label", {}, text("span", "", "API key for the chat, if the one above is an admin key"), chatKey),
    text("p", "faint", "Kept in this tab until it is closed or loaded again."),
    el("div", { className: "bar" }, el("button", { type: "button", textContent: "Cancel", onclick: () => dialog.close() }), el("button", { type: "submit", className: "primary", textContent: "Use" })));
  dialog.append(keyForm);

  function askForKey(why) {
    setState("gone", "needs a key");
    put(whyKey, why || "This server asks for a key.");
    say(why || "This server asks for a key.");
    if (!dialog.open && !story.open) dialog.showModal();
  }

  keyForm.addEventListener("submit", (event) => {
    event.preventDefault();
    const given = [watchKey.value.trim(), chatKey.value.trim()];
    if (given.some((key) => !/^[\x21-\x7e]*$/.test(key))) {
      put(whyKey, "A key has printable ASCII characters and no spaces.");
      return;
    }
    [keys.watch, keys.chat] = given;
    dialog.close();
    poll();
  });

  // ---------------------------------------------------------------- the page

  function show() {
    setState(live.state, STATES[live.state] || live.state);
    put(byId("model"), live.models.join(", ") || live.engines[0].model);
    put(byId("since"), `up ${span(live.up_s)}`);
    const [{ counts }] = live.engines;
    document.title = counts && counts.running ? `${count(counts.running)} running – Chairlift` : "Chairlift";
    talk.hidden = byId("tabs").hidden = !live.models.length;
    chartRow.hidden = !live.lately;
    showTiles();
    showEngines();
    showTables();
    charts.forEach(draw);
    if (told && !told.ended) tell();
    document.documentElement.dataset.drawn = "yes";
  }

  startChat(talk, { key: () => keys.chat || keys.watch, model: () => (live ? live.models[0] : null), askForKey });
  main.append(tileRow, chartRow, engineBox, groupTable.box, endedTable.box);
  groupTable.box.hidden = endedTable.box.hidden = tileRow.hidden = chartRow.hidden = true;

  for (const button of byId("tabs").children) {
    button.addEventListener("click", () => {
      byId("parts").dataset.shown = button.dataset.part;
      for (const other of byId("tabs").children) other.setAttribute("aria-pressed", other === button);
      charts.forEach(draw);
    });
  }
  byId("pause").addEventListener("click", (event) => {
    isPaused = !isPaused;
    event.target.setAttribute("aria-pressed", isPaused);
    put(event.target, isPaused ? "Go on" : "Pause");
    poll();
  });
  byId("key").addEventListener("click", () => {
    put(whyKey, "");
    watchKey.value = keys.watch;
    chatKey.value = keys.chat;
    dialog.showModal();
  });
  document.addEventListener("visibilitychange", poll);
  new ResizeObserver(([{ target }]) => {
    document.documentElement.style.setProperty("--top", `${target.offsetHeight}px`);
    charts.forEach(draw);
  }).observe(document.querySelector("header"));
  window.addEventListener("resize", () => charts.forEach(draw));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach(draw));
  poll();
})();
