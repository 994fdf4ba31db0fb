// The surge of examples/surge for k6: users who arrive within two seconds, and send the next request
// 0.1 to 0.3 s after each answer. After a 429, a user waits for Retry-After.
//
//   k6 run -e TARGET=http://localhost:8080 -e USERS=2000 -e SECONDS=14 examples/clients/load/surge.k6.js
//
// k6 is from https://k6.io. This file was tested with version 1.
import http from 'k6/http';
import { sleep } from 'k6';
import { Counter } from 'k6/metrics';

const target = __ENV.TARGET || 'http://localhost:8080';
const users = Number(__ENV.USERS || 2000);
const seconds = Number(__ENV.SECONDS || 14);

// Of eight requests, five are for a ride, two for a fare and one for drivers.
const requests = [
  ...Array(5).fill(['POST', '/api/rides/request']),
  ...Array(2).fill(['GET', '/api/fares/estimate']),
  ['GET', '/api/drivers/nearby'],
];
const allowed = new Counter('allowed');
const denied = new Counter('denied');

// A denial is an answer that the limits are there for, so it is no failure.
http.setResponseCallback(http.expectedStatuses({ min: 200, max: 299 }, 429));

export const options = {
  scenarios: {
    surge: {
      executor: 'ramping-vus',
      startVUs: 0,
      stages: [
        { duration: '2s', target: users },
        { duration: `${seconds - 2}s`, target: users },
      ],
      gracefulRampDown: '0s',
    },
  },
  thresholds: { http_req_failed: ['rate==0'] },
};

export default function () {
  const [method, path] = requests[Math.floor(Math.random() * requests.length)];
  // Each user has an identity of his own: k6 numbers them from 1.
  const answer = http.request(method, target + path, null, { headers: { 'X-User-Id': `surge-${__VU}` } });
  if (answer.status === 429) {
    denied.add(1);
    sleep(Number(answer.headers['Retry-After'] || 1));
    return;
  }
  allowed.add(answer.status < 300 ? 1 : 0);
  sleep(0.1 + 0.2 * Math.random());
}
