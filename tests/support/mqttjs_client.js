// Clients of MQTT.js, told what to do in lines of JSON on stdin; each line is answered by its
// number on stdout, and messages come in between. Usage: node mqttjs_client.js PATH-OF-MQTT.JS
"use strict";

const readline = require("node:readline");
const mqtt = require(process.argv[2]);

const clients = new Map();

function say(document) {
  process.stdout.write(JSON.stringify(document) + "\n");
}

function describe(topic, payload, packet) {
  const given = packet.properties || {};
  return {
    topic,
    payload: payload.toString("base64"),
    qos: packet.qos,
    retain: packet.retain,
    user: Object.entries(given.userProperties || {}),
    contentType: given.contentType || "",
    responseTopic: given.responseTopic || "",
    correlation: (given.correlationData || Buffer.alloc(0)).toString("base64"),
    expiry: given.messageExpiryInterval ?? null,
    identifiers: [given.subscriptionIdentifier || []].flat(),
  };
}

function connect({ client: name, url, options }, answer) {
  if (options.will) options.will.payload = Buffer.from(options.will.payload, "base64");
  const client = mqtt.connect(url, { reconnectPeriod: 0, ...options });
  const state = { client, pending: new Set(), topics: [] };
  clients.set(name, state);
  client.on("connect", (packet) => answer({ present: packet.sessionPresent }));
  client.on("error", (error) => answer({ closed: error.code || 0 }));
  client.on("packetreceive", (packet) => {
    if (packet.cmd === "disconnect") state.reason = packet.reasonCode;
    if (packet.cmd === "publish") state.topics.push(packet.topic.toString());
  });
  client.on("message", (topic, payload, packet) => {
    say({ client: name, message: describe(topic, payload, packet) });
  });
  client.on("close", () => {
    answer({ closed: state.reason || 0 });
    for (const pending of state.pending) pending({ closed: state.reason || 0 });
  });
}

function subscribe({ client: name, filter, qos, identifier }, answer) {
  const options = { qos };
  if (identifier) options.properties = { subscriptionIdentifier: identifier };
  clients.get(name).client.subscribe(filter, options, (error, granted, packet) => {
    if (packet) answer({ code: packet.granted[0] });
    else answer({ code: error ? error.code || 0x80 : granted[0].qos });
  });
}

function publish({ client: name, topic, payloads, options }, answer) {
  const state = clients.get(name);
  const given = options.properties || {};
  if (given.correlationData) {
    given.correlationData = Buffer.from(given.correlationData, "base64");
  }
  let waiting = payloads.length;
  state.pending.add(answer);
  for (const payload of payloads) {
    state.client.publish(topic, Buffer.from(payload, "base64"), options, (error, packet) => {
      waiting -= 1;
      if (error) answer({ code: error.code || 0 });
      else if (waiting === 0) answer({ code: 0 });
      if (waiting === 0) state.pending.delete(answer);
    });
  }
}

const commands = {
  connect,
  subscribe,
  publish,
  disconnect: ({ client: name }, answer) => {
    clients.get(name).client.end(false, {}, () => answer({}));
  },
  drop: ({ client: name }, answer) => {
    clients.get(name).client.end(true, {}, () => answer({}));
  },
  topics: ({ client: name }, answer) => answer({ topics: clients.get(name).topics }),
};

readline.createInterface({ input: process.stdin }).on("line", (line) => {
  const command = JSON.parse(line);
  let isAnswered = false;
  commands[command.do](command, (document) => {
    if (!isAnswered) say({ number: command.number, ...document });
    isAnswered = true;
  });
}).on("close", () => process.exit(0));
