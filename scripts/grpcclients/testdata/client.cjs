// client.cjs ADDRESS PROTO NODE_MODULES: calls the service with @grpc/grpc-js, and prints a line of JSON for each call.
const [address, proto, modules] = process.argv.slice(2)
const grpc = require(modules + '/@grpc/grpc-js')
const loader = require(modules + '/@grpc/proto-loader')
const Echo = grpc.loadPackageDefinition(loader.loadSync(proto)).penstock.test.Echo
const retries = {methodConfig: [{name: [{}], retryPolicy: {maxAttempts: 3, initialBackoff: '0.01s', maxBackoff: '0.01s', backoffMultiplier: 1, retryableStatusCodes: ['RESOURCE_EXHAUSTED', 'UNAVAILABLE']}}]}
const withoutRetries = new Echo(address, grpc.credentials.createInsecure(), {'grpc.enable_retries': 0})
const withRetries = new Echo(address, grpc.credentials.createInsecure(), {'grpc.service_config': JSON.stringify(retries)})

function call(client, key, value) {
  return new Promise(resolve => {
    const metadata = new grpc.Metadata()
    metadata.set('x-key', key)
    const out = {}
    const ended = client.Say({value}, metadata, {deadline: Date.now() + 20000}, (error, answer) => {
      out.code = error ? grpc.status[error.code] : 'OK'
      out.text = answer && answer.value
      out.details = Boolean(error && error.metadata.get('grpc-status-details-bin').length)
    })
    ended.on('metadata', m => { out.ratelimit = m.get('ratelimit')[0] })
    ended.on('status', s => { out.pushback = s.metadata.get('grpc-retry-pushback-ms'); resolve(out) })
  })
}

(async () => {
  const calls = [ // client, key, text
    [withoutRetries, 'once', 'a'], [withoutRetries, 'once', 'a'], [withRetries, 'again', 'a'], [withRetries, 'again', 'a'],
    [withRetries, 'never', 'longer than the limit'],
  ]
  for (const [client, key, value] of calls) console.log(JSON.stringify({key, ...await call(client, key, value)}))
  withoutRetries.close()
  withRetries.close()
})()
