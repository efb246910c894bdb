package org.apache.kafka.common.test.junit;

import java.io.File;
import java.io.IOException;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.net.ServerSocket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.Stream;

import kafka.cluster.Partition;
import kafka.log.LogManager;
import kafka.network.SocketServer;
import kafka.raft.KafkaRaftManager;
import kafka.server.BrokerServer;
import kafka.server.ControllerServer;
import kafka.server.KafkaApis;
import kafka.server.KafkaBroker;
import kafka.server.KafkaConfig;
import kafka.server.ReplicaManager;
import kafka.server.SharedServer;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.FeatureUpdate;
import org.apache.kafka.clients.admin.FinalizedVersionRange;
import org.apache.kafka.clients.admin.ListTopicsOptions;
import org.apache.kafka.clients.admin.ScramCredentialInfo;
import org.apache.kafka.clients.admin.ScramMechanism;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.admin.UpdateFeaturesOptions;
import org.apache.kafka.clients.admin.UserScramCredentialUpsertion;
import org.apache.kafka.clients.consumer.GroupProtocol;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.memory.MemoryPool;
import org.apache.kafka.common.network.ListenerName;
import org.apache.kafka.common.requests.MetadataRequest;
import org.apache.kafka.common.requests.MetadataResponse;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.common.test.ClusterInstance;
import org.apache.kafka.common.test.JaasUtils;
import org.apache.kafka.common.test.api.ClusterConfig;
import org.apache.kafka.common.test.api.Type;
import org.apache.kafka.controller.Controller;
import org.apache.kafka.controller.ControllerRequestContext;
import org.apache.kafka.coordinator.group.GroupCoordinator;
import org.apache.kafka.metadata.BrokerState;
import org.apache.kafka.metadata.LeaderAndIsr;
import org.apache.kafka.metadata.KRaftMetadataCache;
import org.apache.kafka.server.IntegrationTestUtils;
import org.apache.kafka.server.common.Feature;
import org.apache.kafka.server.common.MetadataVersion;
import org.apache.kafka.server.fault.FaultHandlerException;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.mockito.Answers;
import org.mockito.Mockito;
import org.mockito.stubbing.Answer;
import org.opentest4j.TestAbortedException;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

/**
 * A cluster whose brokers are processes, for tests that expect Kafka's brokers inside their own JVM.
 *
 * <p>A test that reads state inside a broker gets an answer from the public API. Where the public API has no answer, the
 * test is aborted, and the reason names the accessor. The prefix of the reason says why: {@code inside} (state of a
 * broker's objects), {@code setting} (a setting that decides what is tested and that the broker lacks), {@code feature}
 * (a feature level that cannot be set), {@code security} (a listener that is neither PLAINTEXT nor SASL_PLAINTEXT),
 * {@code harness} (a shape of cluster that this class cannot build).
 *
 * <p>A test that wants SASL_PLAINTEXT gets brokers that demand a login, with the two users of Kafka's harness. As there,
 * everybody may do everything unless the test sets an authorizer.
 *
 * <p>Lines for the runner go to {@code notes.txt}: settings that a test asked for and the broker lacks, ERROR lines of
 * broker logs, and brokers that ended without being stopped.
 */
public class ExternalCluster implements ClusterInstance {
    private static final String PROGRAM = System.getProperty("external.program");
    private static final Path HOME = Path.of(System.getProperty("external.home"));
    private static final Set<String> KNOWN = known();
    /** Settings that decide what is tested. A test that sets one of them to an unknown value is aborted; other unknown settings are left out. */
    private static final Pattern DECISIVE = Pattern.compile(
        ".*\\.(class|classes|class\\.name|reporters|assignors)|authorizer\\..*|listener\\..*|super\\.users|.*quota.*|.*sasl.*|.*ssl.*");
    /** Settings of brokers that demand a login, and what they mean here is what they mean in Kafka. */
    private static final Set<String> OF_LOGINS = Set.of("sasl.enabled.mechanisms", "sasl.mechanism.inter.broker.protocol", "super.users");
    /** Keeps the state of share groups in a topic, as a broker of ours does. */
    private static final String PERSISTER = "org.apache.kafka.server.share.persister.DefaultStatePersister";
    private static final String AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer";
    private static final Set<ConfigEntry.ConfigSource> OF_CHANGES = Set.of(
        ConfigEntry.ConfigSource.DYNAMIC_BROKER_CONFIG, ConfigEntry.ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG);
    private static final AtomicInteger COUNT = new AtomicInteger();
    private static final long START_LIMIT_MS = 60_000;

    private final ClusterConfig config;
    private final Type type;
    private final TreeMap<Integer, Member> members = new TreeMap<>();
    private final TreeMap<Integer, BrokerServer> views = new TreeMap<>();
    /** Clients of the views, by the broker that they begin with; made when they are first needed. */
    private final Map<Integer, Admin> askers = new ConcurrentHashMap<>();
    private final Path folder = HOME.resolve("run").resolve(ProcessHandle.current().pid() + "-" + COUNT.incrementAndGet());
    private String name = "?";
    private boolean started;
    private boolean stopped;

    public ExternalCluster(ClusterConfig config, Type type) {
        this.config = config;
        this.type = type;
    }

    private static Set<String> known() {
        try (Stream<String> lines = Files.lines(Path.of(System.getProperty("external.settings")))) {
            return lines.collect(Collectors.toSet());
        } catch (IOException e) {
            throw new IllegalStateException(e);
        }
    }

    private boolean demandsLogin() {
        return config.brokerSecurityProtocol() == SecurityProtocol.SASL_PLAINTEXT;
    }

    public void named(String name) {
        this.name = name;
    }

    public void refuseWhatCannotBe() {
        if (config.brokerSecurityProtocol() != SecurityProtocol.PLAINTEXT && !demandsLogin()) {
            throw new TestAbortedException("security: " + config.brokerSecurityProtocol());
        }
        if (config.metadataVersion() != MetadataVersion.latestTesting()) {
            throw new TestAbortedException("feature: metadata.version " + config.metadataVersion());
        }
        Stream.concat(Stream.of(config.serverProperties()), config.perServerOverrideProperties().entrySet().stream()
            .filter(e -> e.getKey() < 3000).map(Map.Entry::getValue)).flatMap(m -> m.entrySet().stream()).forEach(e -> {
                String key = e.getKey();
                boolean ours = key.equals("group.consumer.assignors") && Set.of("uniform", "range").containsAll(Arrays.asList(e.getValue().split(",")))
                    || key.equals("group.share.persister.class.name") && e.getValue().equals(PERSISTER)
                    || OF_LOGINS.contains(key) || key.equals("authorizer.class.name") && e.getValue().equals(AUTHORIZER);
                if (DECISIVE.matcher(key).matches() && !e.getValue().isEmpty() && !ours) {
                    throw new TestAbortedException("setting: " + key + "=" + e.getValue());
                }
            });
    }

    /** One broker. */
    private final class Member {
        final int id;
        final int peerPort;
        final Path data;
        final int port;
        Process process;

        Member(int id) {
            this.id = id;
            this.peerPort = freePort();
            this.port = freePort();
            this.data = folder.resolve(Integer.toString(id));
        }

        boolean runs() {
            return process != null && process.isAlive();
        }

        void spawn(String seeds) throws IOException {
            List<String> command = new ArrayList<>(List.of("setsid", PROGRAM, "start", "--data", data.toString(),
                "--listen", (demandsLogin() ? "S://" : "") + "127.0.0.1:" + port, "--http", "127.0.0.1:0", "--shards", "1", "--memory", "192MiB", "--node-id", Integer.toString(id)));
            if (config.numBrokers() > 1) {
                command.addAll(List.of("--seeds", seeds, "--peer-listen", "127.0.0.1:" + peerPort));
            }
            Map<String, String> settings = new TreeMap<>(Map.of("shards.pin", "false",
                "advertised.listeners", (demandsLogin() ? "S" : "PLAINTEXT") + "://localhost:" + port));
            if (demandsLogin()) {
                settings.put("listener.security.protocol.map", "S:SASL_PLAINTEXT");
                settings.put("sasl.enabled.mechanisms", "PLAIN");
                settings.put("super.users", "User:" + JaasUtils.KAFKA_PLAIN_ADMIN);
                settings.put("allow.everyone.if.no.acl.found", Boolean.toString(!config.serverProperties().containsKey("authorizer.class.name")));
            }
            // Every broker is a controller as well, so settings for Kafka's controllers (ids from 3000) apply to each broker.
            config.perServerOverrideProperties().forEach((server, properties) -> {
                if (server >= 3000) {
                    settings.putAll(properties);
                }
            });
            settings.putAll(config.serverProperties());
            settings.putAll(config.perServerOverrideProperties().getOrDefault(id, Map.of()));
            // Refused by decision. Many tests set it for a cluster that never needs it.
            settings.remove("unclean.leader.election.enable", "true");
            config.features().forEach((feature, level) -> {
                if (KNOWN.contains(feature.featureName())) {
                    settings.put(feature.featureName(), Short.toString(level));
                }
            });
            settings.forEach((key, value) -> {
                if (KNOWN.contains(key)) {
                    command.addAll(List.of("--set", key + "=" + value));
                } else if (!OF_LOGINS.contains(key)) {
                    note("left out: " + key + "=" + value);
                }
            });
            Files.deleteIfExists(data.resolve("broker.json"));
            File log = folder.resolve(id + ".log").toFile();
            ProcessBuilder builder = new ProcessBuilder(command).redirectErrorStream(true)
                .redirectInput(new File("/dev/null")).redirectOutput(ProcessBuilder.Redirect.appendTo(log));
            if (demandsLogin()) {
                Path user = folder.resolve("first-user");
                Files.writeString(user, JaasUtils.KAFKA_PLAIN_ADMIN + ":" + JaasUtils.KAFKA_PLAIN_ADMIN_PASSWORD + "\n");
                builder.environment().put("MILLSTREAM_BOOTSTRAP_USER_FILE", user.toString());
            }
            process = builder.start();
        }

        void await() throws IOException, InterruptedException {
            long end = System.currentTimeMillis() + START_LIMIT_MS;
            while (System.currentTimeMillis() < end) {
                for (Member m : members.values()) {
                    if (m.process != null && !m.process.isAlive() && m.process.exitValue() != 0 && !started) {
                        throw new IllegalStateException("broker " + m.id + " ended at its start: " + tail(m.id));
                    }
                }
                if (!process.isAlive()) {
                    throw new IllegalStateException("broker " + id + " ended at its start: " + tail(id));
                }
                Path about = data.resolve("broker.json");
                if (Files.exists(about)) {
                    return;
                }
                Thread.sleep(20);
            }
            throw new IllegalStateException("broker " + id + " does not serve after " + START_LIMIT_MS + " ms: " + tail(id));
        }

        void end(boolean gently) {
            if (process == null) {
                return;
            }
            try {
                if (gently && process.isAlive()) {
                    process.destroy();
                    if (process.waitFor(30, TimeUnit.SECONDS)) {
                        return;
                    }
                    note("broker " + id + " did not stop in 30 s");
                }
                new ProcessBuilder("kill", "-9", "--", "-" + process.pid()).redirectErrorStream(true)
                    .redirectOutput(new File("/dev/null")).start().waitFor();
                process.waitFor();
            } catch (IOException | InterruptedException e) {
                throw new IllegalStateException(e);
            }
        }
    }

    /** A port that is free now, and that no outgoing connection gets meanwhile. */
    private static int freePort() {
        while (true) {
            int port = ThreadLocalRandom.current().nextInt(15_000, 32_000);
            try (ServerSocket socket = new ServerSocket(port)) {
                return socket.getLocalPort();
            } catch (IOException e) {
                // It is taken.
            }
        }
    }

    private String tail(int id) {
        try {
            List<String> lines = Files.readAllLines(folder.resolve(id + ".log"));
            return String.join("\n", lines.subList(Math.max(0, lines.size() - 5), lines.size()));
        } catch (IOException e) {
            return "no log";
        }
    }

    private void note(String text) {
        try {
            Files.writeString(HOME.resolve("notes.txt"), name + "\t" + text + "\n", StandardCharsets.UTF_8, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        } catch (IOException e) {
            throw new IllegalStateException(e);
        }
    }

    private String seeds() {
        return members.values().stream().map(m -> "127.0.0.1:" + m.peerPort).collect(Collectors.joining(","));
    }

    /** What a test gets that reads what only a broker inside its own JVM has. */
    public static TestAbortedException inside(String what) {
        return new TestAbortedException("inside: " + what);
    }

    // ---- lifecycle ----

    @Override
    public void start() {
        if (started) {
            return;
        }
        try {
            Files.createDirectories(folder);
            for (int id = 0; id < config.numBrokers(); id++) {
                members.put(id, new Member(id));
            }
            for (Member m : members.values()) {
                m.spawn(seeds());
            }
            for (Member m : members.values()) {
                m.await();
            }
            started = true;
            createSecondUser();
            setFeatures();
        } catch (TestAbortedException e) {
            throw e;
        } catch (IOException | InterruptedException | RuntimeException e) {
            members.values().forEach(m -> m.end(false));
            throw new IllegalStateException("the cluster did not start: " + e.getMessage(), e);
        }
    }

    private void createSecondUser() {
        if (!demandsLogin()) {
            return;
        }
        try (Admin admin = admin()) {
            admin.alterUserScramCredentials(List.of(new UserScramCredentialUpsertion(JaasUtils.KAFKA_PLAIN_USER1,
                new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), JaasUtils.KAFKA_PLAIN_USER1_PASSWORD))).all().get();
        } catch (InterruptedException | java.util.concurrent.ExecutionException e) {
            throw new IllegalStateException("the second user was not created: " + e.getMessage(), e);
        }
    }

    /**
     * Sets feature levels through UpdateFeatures, other than those that are settings of a broker. Kafka's own harness
     * writes all of them when it formats the directories.
     */
    private void setFeatures() {
        if (config.features().keySet().stream().allMatch(feature -> KNOWN.contains(feature.featureName()))) {
            return;
        }
        try (Admin admin = admin()) {
            Map<String, FinalizedVersionRange> have = admin.describeFeatures().featureMetadata().get().finalizedFeatures();
            for (Map.Entry<Feature, Short> requested : config.features().entrySet()) {
                String feature = requested.getKey().featureName();
                short level = requested.getValue();
                short now = have.containsKey(feature) ? have.get(feature).maxVersionLevel() : 0;
                if (now != level) {
                    admin.updateFeatures(Map.of(feature, new FeatureUpdate(level, level < now ? FeatureUpdate.UpgradeType.SAFE_DOWNGRADE : FeatureUpdate.UpgradeType.UPGRADE)),
                        new UpdateFeaturesOptions()).all().get();
                }
            }
        } catch (Exception e) {
            stop();
            throw new TestAbortedException("feature: " + config.features() + ": " + e.getMessage());
        }
    }

    @Override
    public boolean started() {
        return started;
    }

    @Override
    public void stop() {
        if (stopped) {
            return;
        }
        stopped = true;
        askers.values().forEach(admin -> admin.close(Duration.ZERO));
        for (Member m : members.values()) {
            if (started && m.process != null && !m.process.isAlive() && m.process.exitValue() != 0 && m.process.exitValue() != 137 && m.process.exitValue() != 143) {
                note("BROKER ENDED with " + m.process.exitValue() + ": " + tail(m.id));
            }
            m.end(false);
            try (Stream<String> lines = Files.lines(folder.resolve(m.id + ".log"), StandardCharsets.ISO_8859_1)) {
                lines.filter(l -> l.contains("Z ERROR ") || l.contains("Traceback")).limit(5).forEach(l -> note("LOG of " + m.id + ": " + l));
            } catch (IOException e) {
                // The broker wrote no log.
            }
        }
        if (!Boolean.getBoolean("external.keep")) {
            remove(folder.toFile());
        } else {
            note("kept in " + folder);
        }
    }

    private static void remove(File file) {
        File[] below = file.listFiles();
        if (below != null) {
            for (File f : below) {
                remove(f);
            }
        }
        file.delete();
    }

    @Override
    public boolean stopped() {
        return stopped;
    }

    @Override
    public void shutdownBroker(int id) {
        member(id).end(true);
    }

    @Override
    public void startBroker(int id) {
        try {
            member(id).spawn(seeds());
            // A broker serves only when a majority runs. A test that starts all brokers one by one must not wait for the first.
            long up = members.values().stream().filter(Member::runs).count();
            if (up * 2 > members.size()) {
                for (Member m : members.values()) {
                    if (m.runs()) {
                        m.await();
                    }
                }
            }
        } catch (IOException | InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    private Member member(int id) {
        return Optional.ofNullable(members.get(id)).orElseThrow(() -> new IllegalArgumentException("Unknown brokerId " + id));
    }

    @Override
    public void waitForReadyBrokers() throws InterruptedException {
        waitUntil(() -> {
            try (Admin admin = admin()) {
                return admin.describeCluster().nodes().get().size() == config.numBrokers();
            }
        }, "not all brokers are ready");
    }

    // ---- what it is ----

    @Override
    public Type type() {
        return type;
    }

    @Override
    public ClusterConfig config() {
        return config;
    }

    @Override
    public Set<Integer> controllerIds() {
        return type == Type.CO_KRAFT ? members.keySet() : Set.of(3000);
    }

    /** Every broker is a controller; the harness asks one of them about topics, and waits until brokers have what it has. */
    @Override
    public Map<Integer, ControllerServer> controllers() {
        return controllerIds().stream().collect(Collectors.toMap(id -> id, id -> view(ControllerServer.class, new ControllerView())));
    }

    @Override
    public Set<Integer> brokerIds() {
        return members.keySet();
    }

    @Override
    public ListenerName clientListener() {
        return config.brokerListenerName();
    }

    @Override
    public ListenerName controllerListenerName() {
        return config.controllerListenerName();
    }

    @Override
    public String bootstrapServers() {
        return members.values().stream().map(m -> "localhost:" + m.port).collect(Collectors.joining(","));
    }

    @Override
    public String bootstrapControllers() {
        return bootstrapServers();
    }

    @Override
    public List<Integer> brokerBoundPorts() {
        return members.values().stream().map(m -> m.port).toList();
    }

    @Override
    public String clusterId() {
        try (Admin admin = admin()) {
            return admin.describeCluster().clusterId().get();
        } catch (Exception e) {
            throw new IllegalStateException(e);
        }
    }

    @Override
    public Set<GroupProtocol> supportedGroupProtocols() {
        return Set.of(GroupProtocol.CLASSIC, GroupProtocol.CONSUMER);
    }

    @Override
    public Optional<FaultHandlerException> firstFatalException() {
        return Optional.empty();
    }

    @Override
    public Optional<FaultHandlerException> firstNonFatalException() {
        return Optional.empty();
    }

    // ---- waiting: each running broker is asked through the public API ----

    private interface Holds {
        boolean now() throws Exception;
    }

    private static void waitUntil(Holds holds, String otherwise) throws InterruptedException {
        long end = System.currentTimeMillis() + 60_000;
        Exception last = null;
        while (System.currentTimeMillis() < end) {
            try {
                if (holds.now()) {
                    return;
                }
            } catch (Exception e) {
                last = e;
            }
            Thread.sleep(50);
        }
        throw new AssertionError(otherwise + " after 60 s", last);
    }

    private Admin asker(Member m) {
        return askers.computeIfAbsent(m.id, id -> admin(Map.of("bootstrap.servers", "localhost:" + m.port,
            "default.api.timeout.ms", "5000", "request.timeout.ms", "5000", "reconnect.backoff.max.ms", "50")));
    }

    /** What broker {@code m} itself knows of topics. A client would ask any broker that it has heard of. */
    private static Cluster known(Member m, List<String> topics) throws IOException {
        MetadataRequest request = new MetadataRequest.Builder(topics, false).build();
        return IntegrationTestUtils.<MetadataResponse>connectAndReceive(request, m.port).buildCluster();
    }

    /** A topic as broker {@code m} knows it. Where logins are demanded, any broker may answer. */
    private Optional<TopicDescription> described(Member m, String topic) throws Exception {
        if (!demandsLogin()) {
            Cluster seen = known(m, List.of(topic));
            return seen.topics().contains(topic) ? Optional.of(described(seen, topic)) : Optional.empty();
        }
        Admin admin = asker(m);
        try {
            if (!admin.listTopics(new ListTopicsOptions().listInternal(true)).names().get().contains(topic)) {
                return Optional.empty();
            }
            return Optional.of(admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic));
        } catch (java.util.concurrent.ExecutionException e) {
            if (e.getCause() instanceof org.apache.kafka.common.errors.UnknownTopicOrPartitionException) {
                return Optional.empty();
            }
            throw e;
        }
    }

    private static TopicDescription described(Cluster seen, String topic) {
        List<TopicPartitionInfo> partitions = seen.partitionsForTopic(topic).stream().sorted(Comparator.comparing(PartitionInfo::partition))
            .map(p -> new TopicPartitionInfo(p.partition(), p.leader(), List.of(p.replicas()), List.of(p.inSyncReplicas()))).toList();
        return new TopicDescription(topic, seen.internalTopics().contains(topic), partitions, Set.of(), seen.topicId(topic));
    }

    @Override
    public void waitTopicCreation(String topic, int partitions) throws InterruptedException {
        if (partitions <= 0) {
            throw new IllegalArgumentException("Partition count must be > 0, but was " + partitions);
        }
        for (Member m : members.values()) {
            if (m.runs()) {
                waitUntil(() -> described(m, topic).filter(d -> d.partitions().size() == partitions).isPresent(), topic + " is not at broker " + m.id);
            }
        }
    }

    @Override
    public void waitTopicDeletion(String topic) throws InterruptedException {
        for (Member m : members.values()) {
            if (m.runs()) {
                waitUntil(() -> described(m, topic).isEmpty(), topic + " is still at broker " + m.id);
            }
        }
    }

    @Override
    public void waitAcls(AclBindingFilter filter, Collection<AccessControlEntry> entries) throws InterruptedException {
        Set<AccessControlEntry> wanted = Set.copyOf(entries);
        for (Member m : members.values()) {
            if (m.runs()) {
                waitUntil(() -> {
                    Collection<AclBinding> found = asker(m).describeAcls(filter).values().get();
                    return found.stream().map(AclBinding::entry).collect(Collectors.toSet()).equals(wanted);
                }, "broker " + m.id + " lacks entries for " + filter);
            }
        }
    }

    @Override
    public void ensureConsistentMetadata() {
    }

    @Override
    public void ensureConsistentMetadata(Collection<KafkaBroker> brokers, Collection<ControllerServer> controllers) {
    }

    // ---- views of a broker that the public API can answer ----

    @Override
    public Map<Integer, KafkaBroker> brokers() {
        return new TreeMap<>(brokerServers());
    }

    /** The same as the class that Kafka's harness casts them to. */
    public Map<Integer, BrokerServer> brokerServers() {
        for (int id = 0; id < config.numBrokers(); id++) {
            views.computeIfAbsent(id, known -> view(BrokerServer.class, new BrokerView(known)));
        }
        return views;
    }

    /** An object of {@code type} whose methods are those of {@code view}. A method that {@code view} lacks aborts the test. */
    private static <T> T view(Class<T> type, Object view) {
        Answer<Object> answer = call -> {
            Method method = call.getMethod();
            if (method.getName().equals("toString")) {
                return view.toString();
            }
            Method own;
            try {
                own = view.getClass().getDeclaredMethod(method.getName(), method.getParameterTypes());
            } catch (NoSuchMethodException e) {
                throw inside(type.getSimpleName().replace("BrokerServer", "KafkaBroker") + "." + method.getName());
            }
            try {
                own.setAccessible(true);
                return own.invoke(view, call.getArguments());
            } catch (InvocationTargetException e) {
                throw e.getCause();
            }
        };
        return Mockito.mock(type, Mockito.withSettings().stubOnly().defaultAnswer(answer));
    }

    private final class ControllerView {
        Controller controller() {
            return view(Controller.class, this);
        }

        CompletableFuture<Map<String, Uuid>> findAllTopicIds(ControllerRequestContext context) throws Exception {
            try (Admin admin = admin()) {
                return CompletableFuture.completedFuture(admin.listTopics(new ListTopicsOptions().listInternal(true)).namesToListings().get()
                    .entrySet().stream().collect(Collectors.toMap(Map.Entry::getKey, e -> e.getValue().topicId())));
            }
        }

        /** Its log ends at offset 0, which every broker has. */
        KafkaRaftManager<?> raftManager() {
            return Mockito.mock(KafkaRaftManager.class, Answers.RETURNS_DEEP_STUBS);
        }
    }

    private final class BrokerView {
        private final int id;

        BrokerView(int id) {
            this.id = id;
        }

        boolean isShutdown() {
            return !member(id).runs();
        }

        /** Kafka's brokers stay in this state when they have ended. */
        BrokerState brokerState() {
            return isShutdown() ? BrokerState.SHUTTING_DOWN : BrokerState.RUNNING;
        }

        /** What it has read of the controller's log is never asked of a server without a loader. */
        SharedServer sharedServer() {
            return Mockito.mock(SharedServer.class);
        }

        KafkaApis dataPlaneRequestProcessor() {
            return view(KafkaApis.class, this);
        }

        int brokerId() {
            return id;
        }

        void shutdown() {
            shutdownBroker(id);
        }

        void awaitShutdown() {
        }

        void startup() {
            startBroker(id);
        }

        int boundPort(ListenerName listener) {
            return member(id).port;
        }

        String clusterId() {
            return ExternalCluster.this.clusterId();
        }

        KafkaConfig config() {
            Properties properties = new Properties();
            Map<String, String> all = new HashMap<>(config.serverProperties());
            all.putAll(config.perServerOverrideProperties().getOrDefault(id, Map.of()));
            all.putAll(Map.of("process.roles", "broker", "node.id", Integer.toString(id), "controller.quorum.voters", "3000@127.0.0.1:1",
                "controller.listener.names", "CONTROLLER", "listeners", "EXTERNAL://127.0.0.1:" + member(id).port, "inter.broker.listener.name", "EXTERNAL",
                "listener.security.protocol.map", "EXTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT", "log.dirs", member(id).data.toString()));
            properties.putAll(all);
            properties.putAll(changed());
            return new KafkaConfig(properties);
        }

        /** What was set while it runs, for it or for all brokers. */
        private Map<String, String> changed() {
            ConfigResource resource = new ConfigResource(ConfigResource.Type.BROKER, Integer.toString(id));
            try {
                return isShutdown() ? Map.of() : asker(member(id)).describeConfigs(List.of(resource)).all().get().get(resource).entries().stream()
                    .filter(e -> e.value() != null && OF_CHANGES.contains(e.source()))
                    .collect(Collectors.toMap(ConfigEntry::name, ConfigEntry::value));
            } catch (InterruptedException | java.util.concurrent.ExecutionException e) {
                return Map.of();
            }
        }

        /** Asked for the port of a listener; a broker has one that tests use. A test reads the memory from a field. */
        SocketServer socketServer() throws ReflectiveOperationException {
            SocketServer server = view(SocketServer.class, this);
            Field memory = SocketServer.class.getDeclaredField("memoryPool");
            memory.setAccessible(true);
            memory.set(server, view(MemoryPool.class, this));
            return server;
        }

        GroupCoordinator groupCoordinator() {
            return view(GroupCoordinator.class, new GroupsView());
        }

        LogManager logManager() {
            return view(LogManager.class, new LogsView(member(id)));
        }

        ReplicaManager replicaManager() {
            return view(ReplicaManager.class, new ReplicasView(member(id)));
        }

        KRaftMetadataCache metadataCache() {
            return view(KRaftMetadataCache.class, new MetadataView(member(id)));
        }

        @Override
        public String toString() {
            return "broker " + id;
        }
    }

    private static final class GroupsView {
        Properties groupMetadataTopicConfigs() {
            Properties properties = new Properties();
            properties.put("cleanup.policy", "compact");
            return properties;
        }
    }

    /** Whether a broker has a replica: it says so when it is asked for its directories. */
    private boolean holds(Member m, TopicPartition partition) throws Exception {
        if (!m.runs()) {
            throw inside("replicas of a broker that was stopped");
        }
        return asker(m).describeLogDirs(List.of(m.id)).allDescriptions().get().get(m.id).values().stream()
            .anyMatch(directory -> directory.replicaInfos().containsKey(partition));
    }

    private final class LogsView {
        private final Member m;

        LogsView(Member m) {
            this.m = m;
        }

        /** What a log holds is not told. */
        Option<UnifiedLog> getLog(TopicPartition partition, boolean future) throws Exception {
            return !future && holds(m, partition) ? Option.apply(view(UnifiedLog.class, this)) : Option.empty();
        }

        scala.collection.Seq<File> liveLogDirs() {
            return CollectionConverters.asScala(List.of(m.data.toFile()));
        }
    }

    private final class ReplicasView {
        private final Member m;

        ReplicasView(Member m) {
            this.m = m;
        }

        Option<Partition> onlinePartition(TopicPartition partition) throws Exception {
            return holds(m, partition) ? Option.apply(view(Partition.class, new PartitionView(m, partition))) : Option.empty();
        }
    }

    private final class PartitionView {
        private final Member m;
        private final TopicPartition partition;

        PartitionView(Member m, TopicPartition partition) {
            this.m = m;
            this.partition = partition;
        }

        Option<Object> leaderIdIfLocal() throws Exception {
            return new MetadataView(m).getLeaderAndIsr(partition.topic(), partition.partition())
                .filter(known -> known.leader() == m.id).map(known -> Option.<Object>apply(m.id)).orElse(Option.empty());
        }
    }

    private final class MetadataView {
        private final Member m;

        MetadataView(Member m) {
            this.m = m;
        }

        Optional<Integer> numPartitions(String topic) throws Exception {
            return described(m, topic).map(d -> d.partitions().size());
        }

        Optional<LeaderAndIsr> getLeaderAndIsr(String topic, int partition) throws Exception {
            return described(m, topic).filter(d -> d.partitions().size() > partition).map(d -> d.partitions().get(partition))
                .filter(p -> p.leader() != null && !p.leader().isEmpty())
                .map(p -> new LeaderAndIsr(p.leader().id(), p.isr().stream().map(Node::id).toList()));
        }

        boolean contains(String topic) throws Exception {
            return described(m, topic).isPresent();
        }

        boolean contains(TopicPartition partition) throws Exception {
            return described(m, partition.topic()).filter(d -> d.partitions().size() > partition.partition()).isPresent();
        }

        Uuid getTopicId(String topic) throws Exception {
            return described(m, topic).map(TopicDescription::topicId).orElse(Uuid.ZERO_UUID);
        }

        List<Node> getAliveBrokerNodes(ListenerName listener) throws Exception {
            return demandsLogin() ? new ArrayList<>(asker(m).describeCluster().nodes().get()) : known(m, List.of()).nodes();
        }
    }
}
