// The official TypeScript worker as a program. Prints each answer that it gets as a line of JSON.
//
//   node worker.mjs run      polls the environment and serves its sessions, until SIGTERM
//   node worker.mjs handle   serves the one item that the ANTHROPIC_* variables name
//   node worker.mjs drain    hands out what is queued, serves each item, ends
import Anthropic from '@anthropic-ai/sdk';
import { betaTool } from '@anthropic-ai/sdk/helpers/beta/json-schema';
import { betaAgentToolset20260401 } from '@anthropic-ai/sdk/tools/agent-toolset/node';

const environmentId = process.env.ANTHROPIC_ENVIRONMENT_ID;
const environmentKey = process.env.ANTHROPIC_ENVIRONMENT_KEY;

async function told(url, init) {
  const answer = await fetch(url, init);
  const line = { method: init?.method ?? 'GET', path: new URL(url).pathname, status: answer.status };
  if (!line.path.endsWith('/stream')) line.body = await answer.clone().text();
  console.log(JSON.stringify(line));
  return answer;
}

const weather = betaTool({
  name: 'get_weather',
  description: 'The weather of a city.',
  inputSchema: { type: 'object', properties: { city: { type: 'string' } } },
  run: ({ city }) => `${city}: 17 C`,
});

const client = new Anthropic({ apiKey: 'not-a-key', fetch: told });
const work = client.beta.environments.work;
const serving = {
  workdir: process.cwd(),
  maxIdleMs: 50,
  tools: (context) => [...betaAgentToolset20260401(context), weather],
};

const modes = {
  async run() {
    const stopping = new AbortController();
    process.on('SIGTERM', () => stopping.abort());
    try {
      await work.worker({ environmentId, environmentKey, ...serving }).run(stopping.signal);
    } catch (error) {
      if (!stopping.signal.aborted) throw error;
    }
  },
  async handle() {
    await work.worker(serving).handleItem();
  },
  async drain() {
    const poller = work.poller({ environmentId, environmentKey, drain: true, autoStop: false, blockMs: null });
    const items = [];
    for await (const item of poller) items.push(item);
    await Promise.all(
      items.map((item) =>
        work.worker(serving).handleItem({
          workId: item.id,
          environmentId: item.environment_id,
          sessionId: item.data.id,
          workSecret: item.secret,
        }),
      ),
    );
  },
};

await modes[process.argv[2]]();
