// Creates an agent and a session, opens the stream, sends a message and prints each event as a line of JSON.
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ maxRetries: 0 });
const { sessions, agents, environments } = client.beta;

const environment = await environments.create({ name: "from TypeScript", config: { type: "cloud" } });
const agent = await agents.create({
  name: "from TypeScript",
  model: "claude-sonnet-5-5",
  tools: [
    {
      type: "custom",
      name: "get_weather",
      description: "The weather of a city.",
      input_schema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
    },
  ],
});
const session = await sessions.create({ agent: agent.id, environment_id: environment.id });

const stream = await sessions.events.stream(session.id, { event_deltas: ["agent.message"] });
await sessions.events.send(session.id, {
  events: [{ type: "user.message", content: [{ type: "text", text: process.argv[2] }] }],
});
for await (const event of stream) {
  console.log(JSON.stringify(event));
  if (event.type === "agent.custom_tool_use") {
    await sessions.events.send(session.id, {
      events: [
        {
          type: "user.custom_tool_result",
          custom_tool_use_id: event.id,
          content: [{ type: "text", text: `sunny in ${event.input.city}` }],
        },
      ],
    });
  }
  if (event.type === "session.status_idle" && event.stop_reason.type !== "requires_action") break;
}

const listed = [];
for await (const event of sessions.events.list(session.id, { limit: 2 })) listed.push(event.id);
console.log(JSON.stringify({ type: "listed", ids: listed }));
console.log(JSON.stringify(await sessions.delete(session.id)));
