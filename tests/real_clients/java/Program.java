import java.io.IOException;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.util.List;
import java.util.Map;
import java.util.logging.LogManager;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import javax.net.ssl.TrustManagerFactory;

/**
 * A program that exercises a broker with one client, in steps: NAME URL CA.
 *
 * <p>The URL is tcp://HOST:PORT, tls://HOST:PORT, ws://HOST:PORT/PATH or wss://HOST:PORT/PATH. CA is a file with the
 * certificate that the broker's must come from.
 *
 * <p>Prints a line for each step and ends with status 0, or says in one line what went wrong and ends with another
 * status.
 */
final class Program {
    static final int PATIENCE_SECONDS = 20;

    private Program() {}

    static URI url;
    private static Path authority;

    interface Step {
        void run() throws Exception;
    }

    /** Runs the steps in the map's order, and ends the process. */
    static void run(String[] arguments, Map<String, Step> steps) {
        url = URI.create(arguments[0]);
        authority = Path.of(arguments[1]);
        // Libraries log each packet.
        LogManager.getLogManager().reset();
        for (var step : steps.entrySet()) {
            try {
                step.getValue().run();
                System.out.println(step.getKey() + " at 5.0: ok");
            } catch (Exception error) {
                System.err.println("failed: " + step.getKey() + ": " + error);
                System.exit(1);
            }
        }
        // The client's threads would keep the process for a while.
        System.exit(0);
    }

    static boolean isTls() {
        return List.of("tls", "wss").contains(url.getScheme());
    }

    static boolean isWebSocket() {
        return List.of("ws", "wss").contains(url.getScheme());
    }

    /** Trusts the broker's authority and no other. */
    static TrustManagerFactory trust() throws GeneralSecurityException, IOException {
        KeyStore trusted = KeyStore.getInstance(KeyStore.getDefaultType());
        trusted.load(null, null);
        try (var file = Files.newInputStream(authority)) {
            trusted.setCertificateEntry("authority", CertificateFactory.getInstance("X.509").generateCertificate(file));
        }
        var trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(trusted);
        return trust;
    }

    static List<Integer> upTo(int end) {
        return IntStream.range(0, end).boxed().collect(Collectors.toList());
    }

    static void check(boolean holds, String what) {
        if (!holds) {
            throw new IllegalStateException(what);
        }
    }

    static void checkEqual(Object got, Object expected, String what) {
        check(got.equals(expected), what + ": " + got + " instead of " + expected);
    }
}
