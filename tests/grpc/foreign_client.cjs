// A client that shares nothing with the plane but the files of `proto/`: it approves, pauses, resumes and follows.
// Prints what it saw as one line of JSON.
"use strict";

const path = require("node:path");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");
const { GrpcReflection } = require("grpc-js-reflection-client");

const [address, key, session, protos] = process.argv.slice(2);
const files = ["upsquad/runtime/v1/lifecycle.proto", "upsquad/governance/v1/approval.proto"];
const definition = loader.loadSync(files, { includeDirs: [protos], keepCase: true, defaults: true, oneofs: true, longs: String, enums: String });
const { upsquad } = grpc.loadPackageDefinition(definition);
const credentials = grpc.credentials.createInsecure();
const lifecycle = new upsquad.runtime.v1.LifecycleService(address, credentials);
const approvals = new upsquad.governance.v1.ApprovalService(address, credentials);

const metadata = new grpc.Metadata();
metadata.set("authorization", `Bearer ${key}`);

const call = (client, method, request, keys = metadata) =>
  new Promise((resolve, reject) => {
    const deadline = new Date(Date.now() + 20_000);
    client[method](request, keys, { deadline }, (error, answer) => (error ? reject(error) : resolve(answer)));
  });

// The events of a stream until one of this type, and the cursor of the last one.
const until = (stream, type) =>
  new Promise((resolve, reject) => {
    const types = [];
    stream.on("error", (error) => (error.code === grpc.status.CANCELLED ? undefined : reject(error)));
    stream.on("data", (message) => {
      if (!message.event) return;
      types.push(message.event.type);
      if (message.event.type === type) {
        stream.cancel();
        resolve({ types, cursor: message.cursor, last: message.event });
      }
    });
  });

async function main() {
  const reflection = new GrpcReflection(address, credentials);
  const services = (await reflection.listServices()).sort();

  const refused = await call(approvals, "ListApprovals", {}, new grpc.Metadata()).catch((error) => error.code);

  const requests = approvals.WatchApprovals({}, metadata);
  const decided = until(requests, "decision");
  const request = { session_id: session, tool_name: "refunds.create", args: Buffer.from('{"order":"A-1"}') };
  const asked = await call(approvals, "RequestApproval", request);
  const again = await call(approvals, "RequestApproval", request);
  const seen = await call(approvals, "GetApproval", { approval_id: asked.approval_id });
  const decision = {
    approval_id: asked.approval_id,
    decision: "DECISION_APPROVED",
    channel: "CHANNEL_API",
    version: seen.version,
    input_hash: seen.input_hash,
    idempotency_key: "node-1",
  };
  const results = [];
  for (const each of [decision, decision, { ...decision, idempotency_key: "node-2", decision: "DECISION_DENIED" }])
    results.push((await call(approvals, "RecordDecision", each)).result);

  const events = until(lifecycle.WatchSession({ session_id: session }, metadata), "session_paused");
  const paused = await call(lifecycle, "PauseSession", { session_id: session, reason: "from Node" });
  const before = await events;
  const rest = until(lifecycle.WatchSession({ session_id: session, after: before.cursor }, metadata), "session_resumed");
  const input = { session_id: session, resume_reason: "done" };
  const resumed = await call(lifecycle, "ResumeSession", input);
  const twice = await call(lifecycle, "ResumeSession", input).catch((error) => error.code);

  console.log(
    JSON.stringify({
      services,
      refused,
      deduplicated: [asked.was_deduplicated, again.was_deduplicated, asked.approval_id === again.approval_id],
      results,
      decided: (await decided).last.approval.status,
      paused: paused.status,
      reason: before.last.agent_event.session_paused.reason,
      rest: (await rest).types,
      resumed: resumed.status,
      twice,
    }),
  );
  lifecycle.close();
  approvals.close();
  process.exit(0);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
