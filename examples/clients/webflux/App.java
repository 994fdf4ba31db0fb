// Limits the requests of a Spring WebFlux server: PENSTOCK_URL=http://localhost:8090 PENSTOCK_TOKEN=... SERVER_PORT=3000 java -cp 'jars/*:classes' limited.App
package limited;

import java.time.Duration;
import java.util.Map;
import org.slf4j.LoggerFactory;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.context.annotation.Bean;
import org.springframework.http.HttpStatus;
import org.springframework.http.ResponseEntity;
import org.springframework.http.server.reactive.ServerHttpRequest;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.RestController;
import org.springframework.web.reactive.function.client.WebClient;
import org.springframework.web.server.WebFilter;
import reactor.core.publisher.Mono;

@SpringBootApplication
@RestController
public class App {
	private final WebClient penstock = WebClient.builder().baseUrl(System.getenv("PENSTOCK_URL"))
		.defaultHeader("Authorization", "Bearer " + System.getenv("PENSTOCK_TOKEN")).build();

	/** Responds to a denied request, and to one that Penstock cannot read. */
	@Bean
	WebFilter limit() {
		return (exchange, chain) -> check(exchange.getRequest()).flatMap(check -> {
			var response = exchange.getResponse();
			for (var name : new String[] {"RateLimit", "RateLimit-Policy", "Retry-After"})
				check.getHeaders().getOrEmpty(name).forEach(value -> response.getHeaders().set(name, value));
			if (check.getBody().get("allowed") == Boolean.TRUE) return chain.filter(exchange);
			response.setStatusCode(isRejected(check) ? HttpStatus.BAD_REQUEST : check.getStatusCode());
			return response.setComplete();
		});
	}

	/** Returns the response of Penstock. If there is none, or an error that is not about the request, the request passes, with a line in the log. */
	private Mono<ResponseEntity<Map>> check(ServerHttpRequest request) {
		var user = request.getHeaders().getOrEmpty("X-User"); // in your server: the user that the authentication has found
		var attributes = Map.of("method", request.getMethod().name(), "path", request.getPath().value(),
			"address", request.getRemoteAddress().getAddress().getHostAddress(), "descriptors", Map.of("user", String.join("", user)));
		return penstock.post().uri("/v1/check?status=429").bodyValue(Map.of("attributes", attributes))
			.exchangeToMono(response -> response.toEntity(Map.class)).timeout(Duration.ofSeconds(1))
			.doOnNext(check -> { if (!isRejected(check) && !check.getBody().containsKey("allowed")) throw new IllegalStateException("" + check.getBody().get("detail")); })
			.onErrorResume(error -> {
				LoggerFactory.getLogger(App.class).error("no decision, so the request passes: {}", error.toString());
				return Mono.just(ResponseEntity.ok(Map.of("allowed", true)));
			});
	}

	/** Reports whether Penstock cannot read the request. If such a request passed, clients could choose to have no limits. */
	private static boolean isRejected(ResponseEntity<Map> check) {
		return check.getStatusCode() == HttpStatus.BAD_REQUEST || check.getStatusCode() == HttpStatus.CONFLICT;
	}

	@GetMapping("/hello")
	String hello() {
		return "hello";
	}

	public static void main(String[] args) {
		SpringApplication.run(App.class, args);
	}
}
