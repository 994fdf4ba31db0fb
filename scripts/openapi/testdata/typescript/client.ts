// Calls the check API with openapi-fetch and the types that openapi-typescript generates from the OpenAPI file.
// The compiler rejects this file if a type requires a field that the service does not require.
import createClient from "openapi-fetch";
import type { paths } from "./schema.js";

declare const process: { argv: string[] };

const [, , address, token] = process.argv;
const client = createClient<paths>({ baseUrl: address, headers: { Authorization: `Bearer ${token}` } });

// The limit is 3 units per minute, so the fourth check is denied.
for (const want of ["allowed", "allowed", "allowed", "denied"]) {
	const { data, error } = await client.POST("/v1/check", { body: { rule: "search", key: "user:typescript" } });
	if (data?.outcome !== want) {
		throw new Error(`the check got ${JSON.stringify(data ?? error)}; want the outcome ${want}`);
	}
}
console.log("the client in TypeScript was allowed three times, and denied once");

const reserved = await client.POST("/v1/reserve", { body: { check: { rule: "search", key: "user:reserves" } } });
if (reserved.data?.decision?.allowed !== true) {
	throw new Error(`the reservation got ${JSON.stringify(reserved.data ?? reserved.error)}; want it allowed`);
}

// These calls are only compiled.
export const checks = () => [
	client.POST("/v1/check", { body: { attributes: { method: "POST", path: "/search", address: "192.0.2.7" } } }),
	client.POST("/v1/check", { body: { key: "user:1", limits: [{ rate: "100/s" }, { in_flight: 5 }] } }),
	client.POST("/v1/check-batch", { body: { checks: [{ rule: "search", key: "user:1", cost: 2 }] } }),
];
