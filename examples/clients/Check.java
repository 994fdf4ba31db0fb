import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.Optional;
import java.util.UUID;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Gets a decision from Penstock: java Check.java http://localhost:8090 TOKEN user:42 */
public class Check {
    public static void main(String[] args) throws InterruptedException {
        Optional<String> decision = check(args[0], args[1], args[2]);
        if (decision.isEmpty()) {
            System.out.println("undecided: this program goes on");
        } else if (decision.get().startsWith("{\"allowed\":true")) {
            System.out.println("allowed, " + number(decision.get(), "remaining") + " left");
        } else if (number(decision.get(), "retry_after_ms") < 0) {
            System.out.println("denied, do not retry");
        } else {
            System.out.println("denied, retry after " + number(decision.get(), "retry_after_ms") / 1000.0 + " s");
        }
    }

    /** Returns the decision, or nothing if there is none. */
    static Optional<String> check(String url, String token, String key) throws InterruptedException {
        // With the id, the second try is free if the first was charged.
        String body = "{\"rule\": \"api\", \"key\": \"" + key + "\", \"request_id\": \"" + UUID.randomUUID() + "\"}";
        HttpClient client = HttpClient.newBuilder().connectTimeout(Duration.ofSeconds(1)).version(HttpClient.Version.HTTP_1_1).build();
        HttpRequest request = HttpRequest.newBuilder(URI.create(url + "/v1/check")).timeout(Duration.ofSeconds(1))
            .header("Content-Type", "application/json").header("Authorization", "Bearer " + token)
            .POST(HttpRequest.BodyPublishers.ofString(body)).build();
        for (int i = 0; i < 2; i++) {
            double pause = 0.1;
            try {
                HttpResponse<String> response = client.send(request, HttpResponse.BodyHandlers.ofString());
                if (response.statusCode() == 200) {
                    return Optional.of(response.body());
                }
                if (response.statusCode() != 429 && response.statusCode() != 503) { // 429: a proxy limits the calls of this program; 503: no decision
                    System.err.println(response.body()); // our own mistake
                    System.exit(1);
                }
                pause = Math.min(response.headers().firstValue("Retry-After").map(Double::parseDouble).orElse(pause), 1);
            } catch (IOException e) { // the service does not respond
            }
            Thread.sleep((long) (pause * 1000));
        }
        return Optional.empty();
    }

    /** Returns the first number of this name. A larger program would use a parser of JSON. */
    static long number(String json, String name) {
        Matcher m = Pattern.compile("\"" + name + "\":(-?\\d+)").matcher(json);
        return m.find() ? Long.parseLong(m.group(1)) : 0;
    }
}
