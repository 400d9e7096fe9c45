package connectgroup.connect;

import java.io.Closeable;
import java.io.File;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.net.URL;
import java.nio.ByteBuffer;
import java.nio.channels.Channels;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.time.LocalTime;
import java.time.OffsetDateTime;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.Collection;
import java.util.Collections;
import java.util.Enumeration;
import java.util.HashMap;
import java.util.HashSet;
import java.util.IdentityHashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.ServiceConfigurationError;
import java.util.ServiceLoader;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;

import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.SerializationFeature;

import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.BigIntVector;
import org.apache.arrow.vector.IntVector;
import org.apache.arrow.vector.VarBinaryVector;
import org.apache.arrow.vector.VarCharVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.arrow.vector.ipc.ArrowStreamWriter;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.Config;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.config.ConfigValue;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.PluginMetrics;
import org.apache.kafka.common.metrics.internals.PluginMetricsImpl;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.connect.connector.ConnectRecord;
import org.apache.kafka.connect.connector.Connector;
import org.apache.kafka.connect.data.Field;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.errors.RetriableException;
import org.apache.kafka.connect.header.ConnectHeaders;
import org.apache.kafka.connect.header.Header;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.runtime.InternalSinkRecord;
import org.apache.kafka.connect.runtime.errors.ProcessingContext;
import org.apache.kafka.connect.runtime.isolation.PluginClassLoader;
import org.apache.kafka.connect.sink.ErrantRecordReporter;
import org.apache.kafka.connect.sink.SinkConnector;
import org.apache.kafka.connect.sink.SinkConnectorContext;
import org.apache.kafka.connect.sink.SinkRecord;
import org.apache.kafka.connect.sink.SinkTask;
import org.apache.kafka.connect.sink.SinkTaskContext;
import org.apache.kafka.connect.source.ConnectorTransactionBoundaries;
import org.apache.kafka.connect.source.ExactlyOnceSupport;
import org.apache.kafka.connect.source.SourceConnector;
import org.apache.kafka.connect.source.SourceConnectorContext;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.source.SourceTask;
import org.apache.kafka.connect.source.SourceTaskContext;
import org.apache.kafka.connect.source.TransactionContext;
import org.apache.kafka.connect.storage.Converter;
import org.apache.kafka.connect.storage.HeaderConverter;
import org.apache.kafka.connect.storage.OffsetStorageReader;
import org.apache.kafka.connect.storage.SimpleHeaderConverter;
import org.apache.kafka.connect.storage.StringConverter;
import org.apache.kafka.connect.transforms.Transformation;
import org.apache.kafka.connect.transforms.predicates.Predicate;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.util.ArrayBasedMapData;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.execution.arrow.ArrowWriter;
import org.apache.spark.sql.types.*;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * The side of Java of the source "connect": it runs a plug-in's connector and tasks. Janino, which Spark ships, compiles
 * this file when the first of them starts: no lambdas, no type parameters, and no private synchronized methods (it
 * makes them static, and they hold another lock). Everything that crosses to Python is a text, mostly JSON, or a file with
 * rows in Arrow's format.
 */
public class Plugins {
  private final Map loaders = new HashMap();
  private final List runs = new ArrayList();
  private volatile long lastBeat = System.nanoTime();

  public void heartbeat() {
    lastBeat = System.nanoTime();
  }

  /** Stop all tasks when the worker has sent no heartbeat for so long: a suspended process would keep what they hold. */
  public void watch(long silenceMs) {
    new Watchdog(this, silenceMs).start();
  }

  long silentMs() {
    return (System.nanoTime() - lastBeat) / 1000000L;
  }

  void expire(long silenceMs) {
    List all;
    synchronized (runs) {
      all = new ArrayList(runs);
    }
    for (int i = 0; i < all.size(); i++) {
      ((SourceRun) all.get(i)).expire("the worker has not responded for " + silenceMs / 1000 + " s");
    }
  }

  void forget(SourceRun run) {
    synchronized (runs) {
      runs.remove(run);
    }
  }

  /** The class loader of a plug-in: child first, by Kafka's own rules. One for all that run here. */
  public synchronized ClassLoader loader(String location, String jars) throws Exception {
    ClassLoader known = (ClassLoader) loaders.get(location + jars);
    if (known != null) return known;
    List paths = (List) Json.MAPPER.readValue(jars, List.class);
    URL[] urls = new URL[paths.size()];
    for (int i = 0; i < urls.length; i++) urls[i] = new File((String) paths.get(i)).toURI().toURL();
    ClassLoader parent = Plugins.class.getClassLoader().getParent();
    PluginLoader made = new PluginLoader(new File(location).toURI().toURL(), urls, parent);
    loaders.put(location + jars, made);
    loadDrivers(made);
    return made;
  }

  /**
   * Load the JDBC drivers of a plug-in, which register themselves, as Kafka Connect does: java.sql.DriverManager looks
   * for them only once, and not in the class loader of a plug-in.
   */
  private static void loadDrivers(PluginLoader loader) throws Exception {
    if (!loader.findResources("META-INF/services/java.sql.Driver").hasMoreElements()) return;
    Iterator drivers = ServiceLoader.load(java.sql.Driver.class, loader).iterator();
    while (true) {
      try {
        if (!drivers.hasNext()) return;
        drivers.next();
      } catch (ServiceConfigurationError error) {
        // A driver that cannot be made: a connection that needs it fails, and says so.
      } catch (LinkageError error) {
        // The same, where a library of it is missing.
      }
    }
  }

  public ConnectorRun connector(String name, ClassLoader loader, String config, String offsets) throws Exception {
    return new ConnectorRun(name, loader, Json.texts(config), new Offsets(offsets));
  }

  /** transforms: objects of Transforms. */
  public SourceRun task(String name, ClassLoader loader, String config, String offsets, List transforms, String options)
      throws Exception {
    SourceRun run = new SourceRun(this, name, loader, Json.texts(config), new Offsets(offsets), transforms, options);
    synchronized (runs) {
      runs.add(run);
    }
    return run;
  }

  /** loaders: of each of the converters, which are names of settings. isTolerant: a record that cannot be processed is
   * a dead letter. */
  public SinkRun sink(ClassLoader loader, List converters, List loaders, String config, List transforms,
      boolean isTolerant) throws Exception {
    Map loaderOf = new HashMap();
    for (int i = 0; i < converters.size(); i++) loaderOf.put(converters.get(i), loaders.get(i));
    return new SinkRun(loader, loaderOf, Json.texts(config), transforms, isTolerant ? new Letters() : null);
  }

  public TransformStep transform(ClassLoader loader, String name, String config, ClassLoader predicateLoader,
      String predicate, String predicateConfig, boolean negate) throws Exception {
    return new TransformStep(loader, name, Json.texts(config), predicateLoader, predicate, Json.texts(predicateConfig),
        negate);
  }

  /** The settings of a transformation, a predicate or a converter that are passwords. */
  public String passwords(ClassLoader loader, String name) throws Exception {
    Thread.currentThread().setContextClassLoader(loader);
    Object made = make(loader, name, Object.class);
    ConfigDef definition = null;
    if (made instanceof Transformation) definition = ((Transformation) made).config();
    else if (made instanceof Predicate) definition = ((Predicate) made).config();
    else if (made instanceof Converter) definition = ((Converter) made).config();
    else if (made instanceof HeaderConverter) definition = ((HeaderConverter) made).config();
    return Json.text(ConnectorRun.passwordsOf(definition));
  }

  /** When this Java ends because some code has called System.exit, say in a file which code that was. */
  public void noteExits(String path) {
    Runtime.getRuntime().addShutdownHook(new ExitNote(path));
  }

  /** Class and message of an error and of its cause, with the place of the cause in the code. */
  static String describe(Throwable error) {
    if (error == null) return "an error that is null";
    Throwable cause = error;
    for (int depth = 0; depth < 20 && cause.getCause() != null && cause.getCause() != cause; depth++) {
      cause = cause.getCause();
    }
    String text = error.toString();
    if (cause != error && !text.contains(cause.toString())) text = text + "; cause: " + cause.toString();
    if (cause instanceof UnsupportedClassVersionError) {
      // What it says is numbers of the format of class files: Java 17 has 61.
      return text + "; allowed: a plug-in for Java " + System.getProperty("java.specification.version")
          + " of this worker, or a later Java in JAVA_HOME";
    }
    StackTraceElement[] trace = cause.getStackTrace();
    for (int i = 0; i < trace.length; i++) {
      String place = trace[i].getClassName();
      if (!place.startsWith("java.") && !place.startsWith("jdk.") && !place.startsWith("sun.")) {
        return text + " (at " + trace[i] + ")";
      }
    }
    return text;
  }

  public String describeThrown(Throwable error) {
    return describe(error);
  }

  static PluginMetrics metrics() {
    return new PluginMetricsImpl(new Metrics(), new LinkedHashMap());
  }

  static Object make(ClassLoader loader, String name, Class kind) throws Exception {
    Class found = Class.forName(name, true, loader);
    if (!kind.isAssignableFrom(found)) {
      throw new IllegalArgumentException(name + " is no " + kind.getSimpleName() + "; allowed: a class that is one");
    }
    String allowed = "; allowed: a public class, not abstract, with a public constructor without arguments";
    try {
      return found.getDeclaredConstructor(new Class[0]).newInstance(new Object[0]);
    } catch (InstantiationException error) {
      throw new IllegalArgumentException(name + " is abstract" + allowed);
    } catch (NoSuchMethodException error) {
      throw new IllegalArgumentException(name + " has no constructor without arguments" + allowed);
    } catch (IllegalAccessException error) {
      throw new IllegalArgumentException(name + ", or its constructor, is not public" + allowed);
    }
  }
}

/** A plug-in's class loader: child first, by Kafka's own rules. */
class PluginLoader extends PluginClassLoader {
  private static final String SERVICES = "META-INF/services/";

  // Its base class is, but each class says so itself. Otherwise two threads that load classes of two loaders, which each
  // refer to the other, would wait for each other forever.
  static {
    ClassLoader.registerAsParallelCapable();
  }

  PluginLoader(URL location, URL[] urls, ClassLoader parent) {
    super(location, urls, parent);
  }

  /** Spark's providers of a service are none of a plug-in that has the service's class itself, such as its own Jackson. */
  public Enumeration getResources(String name) throws IOException {
    return name.startsWith(SERVICES) && isOwn(name.substring(SERVICES.length())) ? findResources(name)
        : super.getResources(name);
  }

  private boolean isOwn(String service) {
    if (findResource(service.replace('.', '/') + ".class") == null) return false;
    try {
      return loadClass(service).getClassLoader() == this;
    } catch (ClassNotFoundException error) {
      return false;
    } catch (LinkageError error) {
      return false;
    }
  }
}

class Json {
  static final ObjectMapper MAPPER = new ObjectMapper();
  static {
    // Numbers of offsets come back as Kafka Connect's own converter makes them. Sorted: partitions are compared as text.
    MAPPER.configure(DeserializationFeature.USE_LONG_FOR_INTS, true);
    MAPPER.configure(SerializationFeature.ORDER_MAP_ENTRIES_BY_KEYS, true);
  }

  static Map texts(String json) throws Exception {
    return (Map) MAPPER.readValue(json, LinkedHashMap.class);
  }

  static String text(Object value) {
    try {
      return MAPPER.writeValueAsString(value);
    } catch (Exception error) {
      throw new RuntimeException(error);
    }
  }

  /** As it comes back after a restart: numbers that are integers are of type Long. */
  static Map copy(Map value) {
    try {
      return (Map) MAPPER.readValue(text(value), LinkedHashMap.class);
    } catch (IOException error) {
      throw new RuntimeException(error);
    }
  }
}

class Watchdog extends Thread {
  private final Plugins plugins;
  private final long silenceMs;

  Watchdog(Plugins plugins, long silenceMs) {
    super("connect watchdog");
    setDaemon(true);
    this.plugins = plugins;
    this.silenceMs = silenceMs;
  }

  public void run() {
    try {
      while (true) {
        Thread.sleep(500);
        if (plugins.silentMs() > silenceMs) plugins.expire(silenceMs);
      }
    } catch (InterruptedException error) {
      // Java ends.
    }
  }
}

class ExitNote extends Thread {
  private final String path;

  ExitNote(String path) {
    this.path = path;
  }

  public void run() {
    Iterator traces = Thread.getAllStackTraces().values().iterator();
    while (traces.hasNext()) {
      StackTraceElement[] trace = (StackTraceElement[]) traces.next();
      boolean exits = false;
      for (int i = 0; i < trace.length; i++) {
        String place = trace[i].getClassName();
        if (place.equals("java.lang.Runtime") && trace[i].getMethodName().equals("exit")) exits = true;
        if (exits && !place.startsWith("java.lang.")) {
          try {
            Files.write(new File(path).toPath(), trace[i].toString().getBytes(StandardCharsets.UTF_8));
          } catch (Exception error) {
            // Java ends anyway.
          }
          return;
        }
      }
    }
  }
}

/** The committed offsets of a connector, by source partition. Partitions are compared as Kafka Connect does: as JSON. */
class Offsets implements OffsetStorageReader {
  private final Map byPartition = new HashMap();

  Offsets(String json) throws Exception {
    Iterator entries = ((List) Json.MAPPER.readValue(json, List.class)).iterator();
    while (entries.hasNext()) {
      List entry = (List) entries.next();
      put((Map) entry.get(0), (Map) entry.get(1));
    }
  }

  synchronized void put(Map partition, Map offset) {
    byPartition.put(Json.text(partition), offset);
  }

  public synchronized Map offset(Map partition) {
    Map found = (Map) byPartition.get(Json.text(partition));
    return found == null ? null : Json.copy(found);
  }

  public synchronized Map offsets(Collection partitions) {
    Map found = new HashMap();
    Iterator each = partitions.iterator();
    while (each.hasNext()) {
      Map partition = (Map) each.next();
      found.put(partition, offset(partition));
    }
    return found;
  }
}

/** A plug-in's connector, which makes the configurations of its tasks. Python calls it from one thread at a time. */
public class ConnectorRun implements SourceConnectorContext, SinkConnectorContext {
  private final Connector connector;
  private final ClassLoader loader;
  private final Map config;
  private final Offsets offsets;
  private boolean reconfigure;
  private String error;

  ConnectorRun(String name, ClassLoader loader, Map config, Offsets offsets) throws Exception {
    this.loader = loader;
    this.config = config;
    this.offsets = offsets;
    Thread.currentThread().setContextClassLoader(loader);
    this.connector = (Connector) Plugins.make(loader, name, Connector.class);
  }

  /** "source", "sink", or empty. */
  public String kind() {
    Thread.currentThread().setContextClassLoader(loader);
    return connector instanceof SourceConnector ? "source" : connector instanceof SinkConnector ? "sink" : "";
  }

  /**
   * Ask the connector, which is not started, about new offsets (KIP-875): lists of partition and offset, or of topic,
   * number and offset. What it throws is its objection; an UnsupportedOperationException is one to every change. False:
   * the connector has not looked at them.
   */
  public boolean alterOffsets(String json) throws Exception {
    Thread.currentThread().setContextClassLoader(loader);
    Iterator each = ((List) Json.MAPPER.readValue(json, List.class)).iterator();
    Map changes = new HashMap();
    boolean isSource = connector instanceof SourceConnector;
    while (each.hasNext()) {
      List entry = (List) each.next();
      if (isSource) changes.put(entry.get(0), entry.get(1));
      else changes.put(new TopicPartition((String) entry.get(0), ((Number) entry.get(1)).intValue()), entry.get(2));
    }
    try {
      if (isSource) return ((SourceConnector) connector).alterOffsets(config, changes);
      return ((SinkConnector) connector).alterOffsets(config, changes);
    } catch (UnsupportedOperationException error) {
      throw new UnsupportedOperationException("the connector does not support external modification of offsets", error);
    }
  }

  /** The settings that are passwords. */
  public String passwords() {
    // Each call may come from another thread, and a plug-in may load its classes at the first use of a definition.
    Thread.currentThread().setContextClassLoader(loader);
    return Json.text(passwordsOf(connector.config()));
  }

  static List passwordsOf(ConfigDef definition) {
    List names = new ArrayList();
    if (definition == null) return names;
    Iterator keys = definition.configKeys().values().iterator();
    while (keys.hasNext()) {
      ConfigDef.ConfigKey key = (ConfigDef.ConfigKey) keys.next();
      if (key.type == ConfigDef.Type.PASSWORD) names.add(key.name);
    }
    return names;
  }

  /** The errors of the settings: a list of pairs of name and messages. */
  public String validate() {
    Thread.currentThread().setContextClassLoader(loader);
    List found = new ArrayList();
    Config checked = (Config) given(connector.validate(config), "validate");
    Iterator values = checked.configValues().iterator();
    while (values.hasNext()) {
      ConfigValue value = (ConfigValue) values.next();
      if (!value.errorMessages().isEmpty()) {
        List pair = new ArrayList();
        pair.add(value.name());
        pair.add(value.errorMessages());
        found.add(pair);
      }
    }
    if (connector instanceof SourceConnector) checkSupport((SourceConnector) connector, found);
    return Json.text(found);
  }

  /** What Kafka Connect asks a source connector about exactly once and transactions, if the settings need it. */
  private void checkSupport(SourceConnector source, List found) {
    String support = (String) config.get("exactly.once.support");
    if (support != null && support.equalsIgnoreCase("required")) {
      Object answer = source.exactlyOnceSupport(config);
      if (answer == null) {
        refuse(found, "exactly.once.support", "the connector does not say whether it supports exactly-once semantics;"
            + " see its documentation, and set requested");
      } else if (answer != ExactlyOnceSupport.SUPPORTED) {
        refuse(found, "exactly.once.support",
            "the connector does not support exactly-once semantics with this configuration; set requested");
      }
    }
    String boundary = (String) config.get("transaction.boundary");
    if (boundary != null && boundary.equalsIgnoreCase("connector")
        && source.canDefineTransactionBoundaries(config) != ConnectorTransactionBoundaries.SUPPORTED) {
      refuse(found, "transaction.boundary",
          "the connector does not define transaction boundaries with this configuration; set poll");
    }
  }

  private static void refuse(List found, String name, String message) {
    List pair = new ArrayList();
    List messages = new ArrayList();
    messages.add(message);
    pair.add(name);
    pair.add(messages);
    found.add(pair);
  }

  public void start() {
    Thread.currentThread().setContextClassLoader(loader);
    connector.initialize(this);
    connector.start(config);
  }

  /** A list of objects of texts; the class of the tasks is the setting "task.class" of each, as in Kafka Connect. */
  public String taskConfigs(int most) {
    Thread.currentThread().setContextClassLoader(loader);
    synchronized (this) {
      reconfigure = false;
    }
    String taskClass = ((Class) given(connector.taskClass(), "taskClass")).getName();
    List found = new ArrayList();
    Iterator configs = ((List) given(connector.taskConfigs(most), "taskConfigs")).iterator();
    while (configs.hasNext()) {
      Map texts = new LinkedHashMap();
      Iterator settings = ((Map) given(configs.next(), "an element of taskConfigs")).entrySet().iterator();
      while (settings.hasNext()) {
        Map.Entry setting = (Map.Entry) settings.next();
        if (setting.getValue() != null) texts.put(String.valueOf(setting.getKey()), setting.getValue().toString());
      }
      texts.put("task.class", taskClass);
      found.add(texts);
    }
    return Json.text(found);
  }

  private static Object given(Object value, String what) {
    if (value == null) {
      throw new IllegalStateException("the connector returned null; allowed: a value of " + what + " that is not null");
    }
    return value;
  }

  public synchronized boolean wantsTasks() {
    return reconfigure;
  }

  public synchronized String error() {
    return error;
  }

  public void stop() {
    Thread.currentThread().setContextClassLoader(loader);
    connector.stop();
  }

  public synchronized void requestTaskReconfiguration() {
    reconfigure = true;
  }

  public synchronized void raiseError(Exception raised) {
    error = Plugins.describe(raised);
  }

  public OffsetStorageReader offsetStorageReader() {
    return offsets;
  }

  public PluginMetrics pluginMetrics() {
    return Plugins.metrics();
  }
}

/** A transformation of a plug-in, with its predicate. */
public class TransformStep {
  private final Transformation transformation;
  private final Predicate predicate;
  private final boolean negate;

  TransformStep(ClassLoader loader, String name, Map config, ClassLoader predicateLoader, String predicateName,
      Map predicateConfig, boolean negate) throws Exception {
    Thread.currentThread().setContextClassLoader(loader);
    transformation = (Transformation) Plugins.make(loader, name, Transformation.class);
    transformation.configure(config);
    Predicate made = null;
    if (predicateName != null) {
      made = (Predicate) Plugins.make(predicateLoader, predicateName, Predicate.class);
      made.configure(predicateConfig);
    }
    predicate = made;
    this.negate = negate;
  }

  SourceRecord apply(SourceRecord record) {
    return (SourceRecord) applyTo(record);
  }

  ConnectRecord applyTo(ConnectRecord record) {
    if (predicate != null && predicate.test(record) == negate) return record;
    return transformation.apply(record);
  }

  private void close() {
    try {
      transformation.close();
    } catch (Throwable error) {
      // The task ends anyway.
    }
    try {
      if (predicate != null) predicate.close();
    } catch (Throwable error) {
      // The same.
    }
  }

  static void closeAll(List steps) {
    for (int i = 0; i < steps.size(); i++) ((TransformStep) steps.get(i)).close();
  }
}

class Closer implements Runnable {
  private final List transforms;

  Closer(List transforms) {
    this.transforms = transforms;
  }

  public void run() {
    TransformStep.closeAll(transforms);
  }
}

/**
 * The ends of transactions that a source task asks for. "Of a batch" is after the records of the poll in progress, or of
 * the next one. Equal records are one here, as in Kafka Connect.
 */
class Boundaries implements TransactionContext {
  private final Set commits = new HashSet();
  private final Set aborts = new HashSet();
  private boolean batchCommits;
  private boolean batchAborts;

  public synchronized void commitTransaction() {
    batchCommits = true;
    check(batchAborts);
  }

  public synchronized void commitTransaction(SourceRecord record) {
    commits.add(given(record));
    check(aborts.contains(record));
  }

  public synchronized void abortTransaction() {
    batchAborts = true;
    check(batchCommits);
  }

  public synchronized void abortTransaction(SourceRecord record) {
    aborts.add(given(record));
    check(commits.contains(record));
  }

  /** Whether a transaction ends with this record (null: with the batch): "commit", "abort", or empty. */
  synchronized String endAfter(SourceRecord record) {
    boolean isCommit;
    boolean isAbort;
    if (record == null) {
      isCommit = batchCommits;
      isAbort = batchAborts;
      batchCommits = false;
      batchAborts = false;
    } else {
      // Most records end none: their hash codes are costly.
      isCommit = !commits.isEmpty() && commits.remove(record);
      isAbort = !aborts.isEmpty() && aborts.remove(record);
    }
    return isCommit ? "commit" : isAbort ? "abort" : "";
  }

  private static SourceRecord given(SourceRecord record) {
    if (record == null) throw new NullPointerException("a record that ends a transaction may not be null");
    return record;
  }

  private static void check(boolean isBoth) {
    if (isBoth) throw new IllegalStateException("the connector requested both commit and abort of one transaction");
  }
}

/** A plug-in's source task. It polls in a thread of its own; Python takes what was polled and says when it is durable. */
public class SourceRun implements SourceTaskContext, Runnable {
  private final Plugins plugins;
  private final SourceTask task;
  private final String name;
  private final ClassLoader loader;
  private final Map config;
  private final Offsets offsets;
  private final List transforms;
  private final Rows rows;
  private final int mostRecords;
  private final ThreadGroup threads;
  private final Thread thread;
  private final Object lock = new Object();
  /** The thread that is in a call of the plug-in and is no poll; interrupted by a stop. Guarded by lock. */
  private Thread caller;
  private List polled = new ArrayList();
  /** Null: the plug-in defines no transactions, and each record is one. */
  private final Boundaries boundaries;
  /** The records of the transaction that has not ended. */
  private final List open = new ArrayList();
  /** Those of polled that make no row: their transaction was aborted, and only their offsets are committed. */
  private final Map aborted = new IdentityHashMap();
  private List taken = new ArrayList();
  private Throwable failure;
  private boolean started;
  private volatile boolean stopping;
  private boolean expired;
  private boolean ended;
  private String retried = "";

  SourceRun(Plugins plugins, String name, ClassLoader loader, Map config, Offsets offsets, List transforms,
      String options) throws Exception {
    this.plugins = plugins;
    this.name = name;
    this.loader = loader;
    this.config = config;
    this.offsets = offsets;
    this.transforms = transforms;
    Map wanted = (Map) Json.MAPPER.readValue(options, LinkedHashMap.class);
    this.mostRecords = ((Number) wanted.get("records")).intValue();
    this.rows = new Rows(wanted);
    String boundary = (String) config.get("transaction.boundary");
    this.boundaries = boundary != null && boundary.equalsIgnoreCase("connector") ? new Boundaries() : null;
    Thread.currentThread().setContextClassLoader(loader);
    this.task = (SourceTask) Plugins.make(loader, (String) config.get("task.class"), SourceTask.class);
    // What the plug-in starts is in the same group: see left.
    this.threads = new ThreadGroup("connect task " + name);
    this.thread = new Thread(threads, this, "connect task " + name);
    thread.setDaemon(true);
    thread.setContextClassLoader(loader);
  }

  public void start() {
    thread.start();
  }

  public void run() {
    try {
      task.initialize(this);
      task.start(config);
      synchronized (lock) {
        started = true;
        lock.notifyAll();
        if (stopping || expired) return;
      }
      long pause = 100;
      while (true) {
        synchronized (lock) {
          if (stopping || expired) return;
        }
        List records;
        try {
          records = task.poll();
          pause = 100;
        } catch (Exception error) {
          if (!isRetriable(error)) throw error;
          synchronized (lock) {
            retried = Plugins.describe(error);
            if (stopping || expired) return;
            lock.wait(pause);
          }
          pause = Math.min(2 * pause, 10000);
          continue;
        }
        synchronized (lock) {
          if (records != null) arrange(records);
          if (records != null && !records.isEmpty()) {
            lock.notifyAll();
            while (polled.size() >= mostRecords && !stopping && !expired) lock.wait();
          } else if (!stopping && !expired) {
            // A plug-in that returns null at once instead of blocking would use a whole processor.
            lock.wait(5);
          }
        }
      }
    } catch (Throwable error) {
      synchronized (lock) {
        if (!stopping && failure == null) failure = error;
      }
    } finally {
      boolean stops;
      synchronized (lock) {
        stops = stopping ? !started || caller == null : true;
      }
      if (stops) quietStop();
      synchronized (lock) {
        ended = true;
        lock.notifyAll();
      }
      plugins.forget(this);
    }
  }

  /** As in Kafka Connect, also an error of Kafka's clients, such as a TimeoutException. */
  private static boolean isRetriable(Exception error) {
    return error instanceof RetriableException || error instanceof org.apache.kafka.common.errors.RetriableException;
  }

  /** Add records to what can be taken: whole transactions. The lock is held. */
  private void arrange(List records) {
    for (int i = 0; i < records.size(); i++) {
      SourceRecord record = (SourceRecord) records.get(i);
      // Kafka Connect drops a record that is null.
      if (record == null) continue;
      if (boundaries == null) {
        polled.add(record);
        continue;
      }
      open.add(record);
      close(boundaries.endAfter(record));
    }
    if (boundaries != null) close(boundaries.endAfter(null));
  }

  private void close(String end) {
    if (end.equals("")) return;
    for (int i = 0; end.equals("abort") && i < open.size(); i++) aborted.put(open.get(i), Boolean.TRUE);
    polled.addAll(open);
    open.clear();
  }

  /** End the task as if it had failed; what it has polled is not committed. */
  void expire(String reason) {
    boolean signals;
    synchronized (lock) {
      if (stopping || expired || ended) return;
      expired = true;
      failure = new IllegalStateException(reason);
      polled.clear();
      aborted.clear();
      signals = started;
      lock.notifyAll();
    }
    if (!signals) {
      thread.interrupt();
      return;
    }
    Thread stopper = new Thread(new Stopper(this), "connect stop " + name);
    stopper.setDaemon(true);
    stopper.setContextClassLoader(loader);
    stopper.start();
  }

  private boolean stopCalled;

  private void quietStop() {
    synchronized (lock) {
      if (stopCalled) return;
      stopCalled = true;
    }
    try {
      task.stop();
    } catch (Throwable error) {
      synchronized (lock) {
        if (failure == null && !stopping) failure = error;
      }
    }
  }

  /** End the task: a signal, an interrupt, and no longer than the bound. Returns whether its thread has ended. */
  public boolean stop(long boundMs) throws Exception {
    long end = System.currentTimeMillis() + boundMs;
    boolean signals;
    synchronized (lock) {
      stopping = true;
      signals = started && !ended;
      if (caller != null) caller.interrupt();
      lock.notifyAll();
    }
    if (signals) {
      Thread stopper = new Thread(new Stopper(this), "connect stop " + name);
      stopper.setDaemon(true);
      stopper.setContextClassLoader(loader);
      stopper.start();
      stopper.join(Math.max(1, boundMs / 2));
      if (stopper.isAlive()) stopper.interrupt();
      thread.join(Math.max(1, (end - System.currentTimeMillis()) / 2));
    }
    if (thread.isAlive()) {
      thread.interrupt();
      thread.join(Math.max(1, end - System.currentTimeMillis()));
    }
    if (!thread.isAlive()) {
      Thread closer = new Thread(new Closer(transforms), "connect close " + name);
      closer.setDaemon(true);
      closer.setContextClassLoader(loader);
      closer.start();
      closer.join(Math.max(1, end - System.currentTimeMillis()));
    }
    return !thread.isAlive();
  }

  void signalStop() {
    quietStop();
  }

  /**
   * The names of the threads that the plug-in has started and that have not ended, as JSON. After a stop, some end only
   * now: they are waited for.
   */
  public String left(long boundMs) throws Exception {
    long end = System.currentTimeMillis() + boundMs;
    while (true) {
      Thread[] found = new Thread[threads.activeCount() + 16];
      int count = threads.enumerate(found);
      List names = new ArrayList();
      for (int i = 0; i < count; i++) {
        if (found[i] != thread && !isShared(found[i].getName())) names.add(found[i].getName());
      }
      if (names.isEmpty() || System.currentTimeMillis() >= end) {
        Collections.sort(names);
        return Json.MAPPER.writeValueAsString(names);
      }
      Thread.sleep(20);
    }
  }

  /** Whether a thread is one of the Java library for all: the first one to use them starts them, in its own group. */
  private static boolean isShared(String name) {
    return name.startsWith("ForkJoinPool.commonPool") || name.equals("CompletableFutureDelayScheduler");
  }

  /** Where the thread of the task is, for the error about one that does not end. */
  public String place() {
    StackTraceElement[] trace = thread.getStackTrace();
    for (int i = 0; i < trace.length; i++) {
      String at = trace[i].getClassName();
      if (!at.startsWith("java.") && !at.startsWith("jdk.")) return trace[i].toString();
    }
    return trace.length > 0 ? trace[0].toString() : "";
  }

  public boolean isStarted() {
    synchronized (lock) {
      return started && !ended;
    }
  }

  /** The error after which the last poll was repeated, once; empty without one. */
  public String retriedAfter() {
    synchronized (lock) {
      String text = retried;
      retried = "";
      return text;
    }
  }

  /**
   * What has been polled since the last call: its rows in a file, and the offsets. Waits up to so many milliseconds for
   * the first record. Empty: nothing. Called when all that was taken before is committed.
   */
  public String take(long waitMs, String path) throws Exception {
    List records;
    List delivered;
    synchronized (lock) {
      if (polled.isEmpty() && failure == null && !stopping && waitMs > 0) lock.wait(waitMs);
      if (stopping) return "";
      if (polled.isEmpty()) {
        if (failure != null) return Json.text(error(failure));
        return "";
      }
      records = polled;
      polled = new ArrayList();
      // Those of which no row was committed are still there.
      taken.addAll(records);
      delivered = records;
      if (!aborted.isEmpty()) {
        delivered = new ArrayList();
        for (int i = 0; i < records.size(); i++) {
          if (aborted.remove(records.get(i)) == null) delivered.add(records.get(i));
        }
      }
      caller = Thread.currentThread();
      lock.notifyAll();
    }
    ClassLoader before = Thread.currentThread().getContextClassLoader();
    try {
      Thread.currentThread().setContextClassLoader(loader);
      List transformed = transforms.isEmpty() ? delivered : new ArrayList(delivered.size());
      // For each record of transformed: the one that the plug-in gave.
      List originals = transforms.isEmpty() ? delivered : new ArrayList(delivered.size());
      if (!transforms.isEmpty()) {
        for (int i = 0; i < delivered.size(); i++) {
          SourceRecord original = (SourceRecord) delivered.get(i);
          SourceRecord record = original;
          try {
            for (int step = 0; step < transforms.size() && record != null; step++) {
              record = ((TransformStep) transforms.get(step)).apply(record);
            }
          } catch (Exception error) {
            rows.reject("transform", original, error);
            continue;
          }
          if (record == null) continue;
          transformed.add(record);
          originals.add(original);
        }
      }
      Map result = rows.write(transformed, originals, path);
      result.put("records", records.size());
      result.put("offsets", offsetsOf(records));
      return Json.text(result);
    } catch (Throwable error) {
      return Json.text(error(error));
    } finally {
      Thread.currentThread().setContextClassLoader(before);
      synchronized (lock) {
        caller = null;
      }
    }
  }

  private static Map error(Throwable error) {
    Map result = new HashMap();
    result.put("error", Plugins.describe(error));
    return result;
  }

  /** For each source partition: itself as JSON, the number of its records, its last offset. */
  private static List offsetsOf(List records) {
    Map found = new LinkedHashMap();
    Map lastMap = null;
    List last = null;
    for (int i = 0; i < records.size(); i++) {
      SourceRecord record = (SourceRecord) records.get(i);
      Map partition = record.sourcePartition();
      // Most plug-ins give the same object with each record.
      if (last == null || partition != lastMap) {
        String key = Json.text(partition);
        last = (List) found.get(key);
        if (last == null) {
          last = new ArrayList();
          last.add(key);
          last.add(Integer.valueOf(0));
          last.add(null);
          found.put(key, last);
        }
        lastMap = partition;
      }
      last.set(1, Integer.valueOf(((Integer) last.get(1)).intValue() + 1));
      last.set(2, record.sourceOffset());
    }
    return new ArrayList(found.values());
  }

  /** What was taken is not durable yet, and a lot more will be taken before it is: keep the last record alone. */
  public void hold() {
    synchronized (lock) {
      List last = new ArrayList();
      if (!taken.isEmpty()) last.add(taken.get(taken.size() - 1));
      taken = last;
    }
  }

  /** What was taken is durable. Returns the error of the plug-in's commit, which Kafka Connect only logs, too. */
  public String committed() {
    List records;
    synchronized (lock) {
      if (stopping) return "";
      records = taken;
      taken = new ArrayList();
      caller = Thread.currentThread();
    }
    ClassLoader before = Thread.currentThread().getContextClassLoader();
    try {
      Thread.currentThread().setContextClassLoader(loader);
      Throwable first = null;
      for (int i = 0; i < records.size() && !stopping; i++) {
        SourceRecord record = (SourceRecord) records.get(i);
        if (record.sourcePartition() != null) offsets.put(record.sourcePartition(), record.sourceOffset());
        try {
          task.commitRecord(record, null);
        } catch (Throwable error) {
          // As in Kafka Connect, the plug-in learns of the others, and its commit follows.
          if (first == null) first = error;
        }
      }
      task.commit();
      return first == null ? "" : Plugins.describe(first);
    } catch (Throwable error) {
      return Plugins.describe(error);
    } finally {
      Thread.currentThread().setContextClassLoader(before);
      synchronized (lock) {
        caller = null;
      }
    }
  }

  public Map configs() {
    return config;
  }

  public OffsetStorageReader offsetStorageReader() {
    return offsets;
  }

  public TransactionContext transactionContext() {
    return boundaries;
  }

  public PluginMetrics pluginMetrics() {
    return Plugins.metrics();
  }
}

class Stopper implements Runnable {
  private final SourceRun run;

  Stopper(SourceRun run) {
    this.run = run;
  }

  public void run() {
    run.signalStop();
  }
}

/**
 * The records of a sink task that cannot be processed. A plug-in may report one from any thread, also long after put:
 * Python writes those that were reported before preCommit returned, and commits the offsets after that. So the report
 * is complete at once; if it is lost, so are the offsets, and the record is put again.
 */
class Letters implements ErrantRecordReporter {
  private List found = new ArrayList();

  public Future report(SinkRecord record, Throwable error) {
    add("sink", SinkRun.original(record), error);
    return CompletableFuture.completedFuture(null);
  }

  void add(String stage, ConsumerRecord record, Throwable error) {
    Map letter = new LinkedHashMap();
    letter.put("stage", stage);
    letter.put("place", record.topic() + "-" + record.partition() + ", offset " + record.offset());
    letter.put("reason", Plugins.describe(error));
    letter.put("value", text(record.value()));
    letter.put("key", text(record.key()));
    List headers = new ArrayList();
    Iterator each = record.headers().iterator();
    while (each.hasNext()) {
      org.apache.kafka.common.header.Header header = (org.apache.kafka.common.header.Header) each.next();
      List pair = new ArrayList();
      pair.add(header.key());
      pair.add(text(header.value()));
      headers.add(pair);
    }
    letter.put("headers", headers);
    synchronized (this) {
      found.add(letter);
    }
  }

  private static String text(Object bytes) {
    return bytes == null ? null : Base64.getEncoder().encodeToString((byte[]) bytes);
  }

  synchronized List taken() {
    List all = found;
    found = new ArrayList();
    return all;
  }
}

/**
 * A plug-in's sink task. Python calls it from one thread at a time, except for stop. At least once: put cannot carry a
 * fence, and what it has written is written again if the offsets that follow are not committed.
 */
public class SinkRun implements SinkTaskContext {
  private final SinkTask task;
  private final ClassLoader loader;
  private final Map config;
  private final List transforms;
  private final Converter keys;
  private final Converter values;
  private final HeaderConverter headers;
  /** Topic partition to the offset up to which put has got all records. */
  private final Map current = new HashMap();
  private final Set assigned = new HashSet();
  private final Set paused = new HashSet();
  private final Map rewinds = new HashMap();
  /** What preCommit has returned and commit has not: topic partition to offset. */
  private final Map durable = new HashMap();
  private long retryMs = -1;
  private volatile boolean stopping;
  private volatile boolean interrupted;
  private volatile long patienceMs;
  private long calls;
  private volatile boolean wasCut;
  private volatile boolean wantsCommit;
  private volatile String waiting;
  private volatile Thread caller;
  private boolean isInitialized;
  /** Null: errors are not tolerated. */
  private final Letters letters;

  SinkRun(ClassLoader loader, Map loaderOf, Map config, List transforms, Letters letters) throws Exception {
    this.letters = letters;
    this.loader = loader;
    this.config = config;
    this.transforms = transforms;
    Thread.currentThread().setContextClassLoader(loader);
    keys = converter("key.converter", true, loaderOf);
    values = converter("value.converter", false, loaderOf);
    String name = (String) config.get("header.converter");
    if (name != null && name.equals("")) name = null;
    headers = (HeaderConverter) Plugins.make(name == null ? loader : (ClassLoader) loaderOf.get("header.converter"),
        name == null ? "org.apache.kafka.connect.storage.SimpleHeaderConverter" : name, HeaderConverter.class);
    Map ofHeaders = below("header.converter.");
    // As in Kafka Connect: those that can be converters of keys and values, too, require it.
    ofHeaders.put("converter.type", "header");
    headers.configure(ofHeaders);
    task = (SinkTask) Plugins.make(loader, (String) config.get("task.class"), SinkTask.class);
  }

  private Converter converter(String setting, boolean isKey, Map loaderOf) throws Exception {
    String name = (String) config.get(setting);
    if (name == null) throw new IllegalArgumentException(setting + ": missing; allowed: a converter of Kafka Connect");
    Converter made = (Converter) Plugins.make((ClassLoader) loaderOf.get(setting), name, Converter.class);
    made.configure(below(setting + "."), isKey);
    return made;
  }

  private Map below(String prefix) {
    Map found = new HashMap();
    Iterator each = config.entrySet().iterator();
    while (each.hasNext()) {
      Map.Entry entry = (Map.Entry) each.next();
      String key = (String) entry.getKey();
      if (key.startsWith(prefix)) found.put(key.substring(prefix.length()), entry.getValue());
    }
    return found;
  }

  /** Start the task with these partitions: lists of topic, number, next offset. Returns where the plug-in wants to begin. */
  public String open(String json) throws Exception {
    enter();
    try {
      if (!isInitialized) {
        // As in Kafka Connect, what start has opened is released by stop, also if start throws.
        isInitialized = true;
        task.initialize(this);
        task.start(config);
      }
      List added = new ArrayList();
      Iterator each = ((List) Json.MAPPER.readValue(json, List.class)).iterator();
      while (each.hasNext()) {
        List entry = (List) each.next();
        TopicPartition at = new TopicPartition((String) entry.get(0), ((Number) entry.get(1)).intValue());
        if (assigned.add(at)) added.add(at);
        if (entry.get(2) != null) current.put(at, new OffsetAndMetadata(((Number) entry.get(2)).longValue()));
      }
      if (!added.isEmpty()) task.open(added);
      return rewound();
    } finally {
      leave();
    }
  }

  /** Where the plug-in has wanted to go on since the last call (context.offset), if it is not there. */
  public String rewound() {
    Map wanted = moves();
    rewinds.clear();
    Iterator moved = wanted.entrySet().iterator();
    while (moved.hasNext()) {
      Map.Entry entry = (Map.Entry) moved.next();
      current.put(entry.getKey(), new OffsetAndMetadata(((Long) entry.getValue()).longValue()));
      durable.remove(entry.getKey());
    }
    return offsets(wanted);
  }

  private Map moves() {
    Map found = new HashMap();
    Iterator each = rewinds.entrySet().iterator();
    while (each.hasNext()) {
      Map.Entry entry = (Map.Entry) each.next();
      Long at = (Long) entry.getValue();
      OffsetAndMetadata reached = (OffsetAndMetadata) current.get(entry.getKey());
      if (at == null || !assigned.contains(entry.getKey())) continue;
      if (reached == null || reached.offset() != at.longValue()) found.put(entry.getKey(), at);
    }
    return found;
  }

  /**
   * Hand over the rows of a file: topic, partition, offset, timestamp and its type, key, value, headers; if the plug-in
   * wants to go on elsewhere (context.offset), no more of them. Returns how many.
   */
  public long put(String path) throws Exception {
    enter();
    FileInputStream file = new FileInputStream(path);
    BufferAllocator allocator = ArrowUtils.rootAllocator().newChildAllocator("connect sink", 0, Long.MAX_VALUE);
    try {
      ArrowStreamReader reader = new ArrowStreamReader(file, allocator);
      long count = 0;
      try {
        VectorSchemaRoot root = reader.getVectorSchemaRoot();
        while (reader.loadNextBatch()) {
          Map reached = new HashMap();
          List records = records(root, reached);
          count += records.size();
          deliver(records);
          // Not before: what put has refused is not to be committed.
          current.putAll(reached);
          // As in Kafka Connect, it gets no later records before those that it wants to get again.
          if (!moves().isEmpty()) break;
          rewinds.clear();
        }
      } finally {
        reader.close();
      }
      return count;
    } finally {
      allocator.close();
      file.close();
      leave();
    }
  }

  /**
   * Everything before these offsets has been put: lists of topic, number, next offset. Behind the last record there may be
   * gaps, and a partition that begins at its end has an offset before it has a record.
   */
  public void reach(String json) throws Exception {
    Iterator each = ((List) Json.MAPPER.readValue(json, List.class)).iterator();
    while (each.hasNext()) {
      List entry = (List) each.next();
      TopicPartition at = new TopicPartition((String) entry.get(0), ((Number) entry.get(1)).intValue());
      long end = ((Number) entry.get(2)).longValue();
      OffsetAndMetadata known = (OffsetAndMetadata) current.get(at);
      if (known == null || known.offset() < end) current.put(at, new OffsetAndMetadata(end));
    }
  }

  private List records(VectorSchemaRoot root, Map reached) throws Exception {
    List found = new ArrayList(root.getRowCount());
    VarCharVector topics = (VarCharVector) root.getVector("topic");
    IntVector partitions = (IntVector) root.getVector("partition");
    BigIntVector offsets = (BigIntVector) root.getVector("offset");
    BigIntVector times = (BigIntVector) root.getVector("timestamp");
    IntVector appended = (IntVector) root.getVector("is_append_time");
    VarBinaryVector key = (VarBinaryVector) root.getVector("key");
    VarBinaryVector value = (VarBinaryVector) root.getVector("value");
    VarCharVector names = (VarCharVector) root.getVector("header_names");
    for (int i = 0; i < root.getRowCount(); i++) {
      String topic = new String(topics.get(i), StandardCharsets.UTF_8);
      int partition = partitions.get(i);
      long offset = offsets.get(i);
      reached.put(new TopicPartition(topic, partition), new OffsetAndMetadata(offset + 1));
      String headerNames = names.isNull(i) ? null : new String(names.get(i), StandardCharsets.UTF_8);
      byte[] rawKey = key.isNull(i) ? null : key.get(i);
      byte[] rawValue = value.isNull(i) ? null : value.get(i);
      Long time = times.isNull(i) ? null : Long.valueOf(times.get(i));
      ConsumerRecord raw = new ConsumerRecord(topic, partition, offset,
          time == null ? ConsumerRecord.NO_TIMESTAMP : time.longValue(),
          !appended.isNull(i) && appended.get(i) == 1
              ? org.apache.kafka.common.record.TimestampType.LOG_APPEND_TIME
              : org.apache.kafka.common.record.TimestampType.CREATE_TIME, rawKey == null ? -1 : rawKey.length,
          rawValue == null ? -1 : rawValue.length, rawKey, rawValue, rawHeaders(headerNames), Optional.empty());
      String stage = "source";
      SinkRecord record;
      try {
        record = converted(raw, time);
        stage = "transform";
        for (int step = 0; step < transforms.size() && record != null; step++) {
          record = (SinkRecord) ((TransformStep) transforms.get(step)).applyTo(record);
        }
      } catch (Exception error) {
        // Code in Kotlin or Scala declares no checked exceptions.
        if (letters == null) throw error;
        letters.add(stage, raw, error);
        continue;
      }
      // As Kafka Connect's own worker makes them: plug-ins look into the context of its class.
      if (record != null) found.add(new InternalSinkRecord(new ProcessingContext(raw), record));
    }
    return found;
  }

  /** The record in Kafka of what a plug-in has got, or of a copy of it. */
  static ConsumerRecord original(SinkRecord record) {
    if (record instanceof InternalSinkRecord) {
      return (ConsumerRecord) ((InternalSinkRecord) record).context().original();
    }
    byte[] value = String.valueOf(record.value()).getBytes(StandardCharsets.UTF_8);
    return new ConsumerRecord(record.originalTopic(), record.originalKafkaPartition().intValue(),
        record.originalKafkaOffset(), null, value);
  }

  private SinkRecord converted(ConsumerRecord raw, Long time) {
    String topic = raw.topic();
    ConnectHeaders own = new ConnectHeaders();
    Iterator each = raw.headers().iterator();
    while (each.hasNext()) {
      org.apache.kafka.common.header.Header header = (org.apache.kafka.common.header.Header) each.next();
      own.add(header.key(), headers.toConnectHeader(topic, header.key(), header.value()));
    }
    SchemaAndValue k = keys.toConnectData(topic, raw.headers(), (byte[]) raw.key());
    SchemaAndValue v = values.toConnectData(topic, raw.headers(), (byte[]) raw.value());
    return new SinkRecord(topic, raw.partition(), k.schema(), k.value(), v.schema(), v.value(), raw.offset(), time,
        raw.timestampType(), own);
  }

  /** Headers are JSON: a list of pairs of name and bytes in base64. */
  private static RecordHeaders rawHeaders(String json) {
    RecordHeaders found = new RecordHeaders();
    if (json == null) return found;
    try {
      Iterator each = ((List) Json.MAPPER.readValue(json, List.class)).iterator();
      while (each.hasNext()) {
        List pair = (List) each.next();
        byte[] bytes = pair.get(1) == null ? null : Base64.getDecoder().decode((String) pair.get(1));
        found.add((String) pair.get(0), bytes);
      }
    } catch (IOException error) {
      throw new RuntimeException(error);
    }
    return found;
  }

  /** Records of partitions that the plug-in has paused wait; the same batch is put again after a RetriableException. */
  private void deliver(List records) throws Exception {
    List ready = records;
    long pause = 100;
    int rounds = 0;
    boolean isRepeated = false;
    waiting = null;
    while (true) {
      // The records of a commit that was under way, but not yet here, are put once.
      if (stopping || interrupted && isRepeated) throw new IllegalStateException("the task stops");
      isRepeated = true;
      List now = new ArrayList();
      List later = new ArrayList();
      for (int i = 0; i < ready.size(); i++) {
        SinkRecord record = (SinkRecord) ready.get(i);
        TopicPartition at = new TopicPartition(record.originalTopic(), record.originalKafkaPartition().intValue());
        if (paused.contains(at)) later.add(record);
        else now.add(record);
      }
      retryMs = -1;
      try {
        task.put(now);
        checkWhole();
        if (later.isEmpty()) return;
        ready = later;
        waiting = "";
        rounds++;
        // As in Kafka Connect, commits go on: the plug-in may resume when it has written what it holds.
        if (wantsCommit || rounds % 20 == 0) ask();
        pause(50);
      } catch (RetriableException error) {
        waiting = Plugins.describe(error);
        // Exactly the same records again, and no later ones before them.
        pause(retryMs > 0 ? retryMs : pause);
        pause = Math.min(2 * pause, 10000);
      }
    }
  }

  synchronized void pause(long ms) throws InterruptedException {
    if (!stopping && !interrupted && ms > 0) wait(ms);
  }

  /** The task is to end: a batch is not put again, and a call that lasts longer than this is interrupted. */
  public synchronized void interrupt(long patienceMs) {
    this.patienceMs = patienceMs;
    interrupted = true;
    notifyAll();
    if (caller != null) interruptLater();
  }

  void interruptLater() {
    Thread interrupter = new Thread(new SinkInterrupter(this), "connect interrupt");
    interrupter.setDaemon(true);
    interrupter.start();
  }

  synchronized void interruptInTime() throws InterruptedException {
    long call = calls;
    long end = System.currentTimeMillis() + patienceMs;
    while (caller != null && calls == call) {
      long left = end - System.currentTimeMillis();
      if (left <= 0) {
        cut();
        return;
      }
      wait(left);
    }
  }

  /** Interrupt the call under way, if there is one. */
  synchronized void cut() {
    if (caller == null) return;
    wasCut = true;
    caller.interrupt();
  }

  /** A plug-in may return from a call that was interrupted as if it had written: nothing is committed any more. */
  private void checkWhole() {
    if (wasCut) throw new IllegalStateException("a call of the plug-in that lasted too long was interrupted: the task stops");
  }

  /** The dead letters since the last call: a list of objects. Those of records that commit has covered are in it. */
  public String letters() {
    return letters == null ? "[]" : Json.text(letters.taken());
  }

  /**
   * Why the plug-in does not go on, if it has said so since the last call (null: it has not): its error, after which put
   * is called again, or an empty text while it has paused the partitions of the records.
   */
  public String waiting() {
    String text = waiting;
    waiting = null;
    return text;
  }

  /** Give the plug-in a chance to write what it holds, and ask up to where its records are durable. */
  public String commit(boolean isIdle) throws Exception {
    enter();
    try {
      checkWhole();
      try {
        if (isIdle) task.put(new ArrayList());
      } catch (RetriableException error) {
        waiting = Plugins.describe(error);
        return "[]"; // it holds what it has, and is asked again
      }
      if (moves().isEmpty()) ask();
      // What it wants to get again is not durable, whatever it says.
      if (!moves().isEmpty()) return "[]";
      String text = offsets(durable);
      durable.clear();
      return text;
    } finally {
      leave();
    }
  }

  private void ask() {
    wantsCommit = false;
    Map said = task.preCommit(new HashMap(current));
    checkWhole();
    if (said == null) return;
    Iterator each = said.entrySet().iterator();
    while (each.hasNext()) {
      Map.Entry entry = (Map.Entry) each.next();
      OffsetAndMetadata reached = (OffsetAndMetadata) current.get(entry.getKey());
      OffsetAndMetadata wanted = (OffsetAndMetadata) entry.getValue();
      // As in Kafka Connect: what the plug-in has not got is not durable, whatever it says.
      if (reached == null || wanted == null || wanted.offset() > reached.offset()) continue;
      durable.put(entry.getKey(), Long.valueOf(wanted.offset()));
    }
  }

  private static String offsets(Map found) {
    List result = new ArrayList();
    Iterator each = found.entrySet().iterator();
    while (each.hasNext()) {
      Map.Entry entry = (Map.Entry) each.next();
      TopicPartition at = (TopicPartition) entry.getKey();
      List one = new ArrayList();
      one.add(at.topic());
      one.add(Integer.valueOf(at.partition()));
      one.add(entry.getValue());
      result.add(one);
    }
    return Json.text(result);
  }

  /** Close and stop, no longer than the bound. Returns whether the plug-in has returned. */
  public boolean stop(long boundMs) throws Exception {
    stopping = true;
    cut();
    Thread stopper = new Thread(new SinkStopper(this), "connect stop");
    stopper.setDaemon(true);
    stopper.setContextClassLoader(loader);
    stopper.start();
    stopper.join(boundMs);
    if (stopper.isAlive()) stopper.interrupt();
    return !stopper.isAlive();
  }

  void end() {
    try {
      if (!isInitialized) return;
      try {
        if (!assigned.isEmpty()) task.close(new ArrayList(assigned));
      } finally {
        task.stop();
      }
    } finally {
      TransformStep.closeAll(transforms);
      close(keys);
      close(values);
      close(headers);
    }
  }

  private static void close(Closeable converter) {
    try {
      converter.close();
    } catch (Throwable error) {
      // The task ends anyway.
    }
  }

  synchronized void enter() {
    calls++;
    caller = Thread.currentThread();
    caller.setContextClassLoader(loader);
    if (interrupted) interruptLater();
  }

  synchronized void leave() {
    Thread.interrupted();
    caller = null;
    notifyAll();
  }

  public Map configs() {
    return config;
  }

  public void offset(Map offsets) {
    rewinds.putAll(offsets);
  }

  public void offset(TopicPartition at, long offset) {
    rewinds.put(at, Long.valueOf(offset));
  }

  public void timeout(long timeoutMs) {
    retryMs = timeoutMs;
  }

  public Set assignment() {
    return new HashSet(assigned);
  }

  public void pause(TopicPartition[] partitions) {
    paused.addAll(Arrays.asList((Object[]) partitions));
  }

  public void resume(TopicPartition[] partitions) {
    paused.removeAll(Arrays.asList((Object[]) partitions));
  }

  public void requestCommit() {
    wantsCommit = true;
  }

  public ErrantRecordReporter errantRecordReporter() {
    return letters;
  }

  public PluginMetrics pluginMetrics() {
    return Plugins.metrics();
  }
}

class SinkInterrupter implements Runnable {
  private final SinkRun run;

  SinkInterrupter(SinkRun run) {
    this.run = run;
  }

  public void run() {
    try {
      run.interruptInTime();
    } catch (InterruptedException error) {
      // Java ends.
    }
  }
}

class SinkStopper implements Runnable {
  private final SinkRun run;

  SinkStopper(SinkRun run) {
    this.run = run;
  }

  public void run() {
    try {
      run.end();
    } catch (Throwable error) {
      // Kafka Connect only logs it, too; nothing is committed any more.
    }
  }
}

/** Without a converter in the configuration: a text as it is, anything else as JSON without schemas. */
class PlainConverter extends JsonConverter {
  public byte[] fromConnectData(String topic, Schema schema, Object value) {
    if (value == null) return null;
    if (value instanceof String && (schema == null || schema.name() == null)) {
      return ((String) value).getBytes(StandardCharsets.UTF_8);
    }
    return super.fromConnectData(topic, schema, value);
  }
}

/** Headers as Kafka Connect writes them by default. */
class SimpleHeaders extends PlainConverter {
  private final SimpleHeaderConverter converter = new SimpleHeaderConverter();

  public byte[] fromConnectData(String topic, Schema schema, Object value) {
    return converter.fromConnectHeader(topic, "", schema, value);
  }
}

/** Makes rows of Spark's types of records, and writes them in Arrow's format. */
class Rows {
  private static final DataType HEADERS = new ArrayType(
      new StructType(new StructField[] {
        new StructField("key", DataTypes.StringType, true, Metadata.empty()),
        new StructField("value", DataTypes.StringType, true, Metadata.empty())
      }), true);

  private final List metadata;
  private final boolean isJson;
  private final boolean isTolerant;
  private final Converter keys;
  private final Converter values;
  private final Converter headers;
  /** Name to type: the metadata, then the fields that any record has had so far. */
  private final LinkedHashMap columns = new LinkedHashMap();
  private final Map known = new IdentityHashMap();
  /** The dead letters that the next file gets. */
  private final List rejected = new ArrayList();
  private final Converter plain = new PlainConverter();
  private final BufferAllocator allocator = ArrowUtils.rootAllocator().newChildAllocator("connect", 0, Long.MAX_VALUE);

  Rows(Map options) throws Exception {
    metadata = (List) options.get("metadata");
    isJson = ((Boolean) options.get("json")).booleanValue();
    isTolerant = ((Boolean) options.get("tolerant")).booleanValue();
    keys = converter(options, "key");
    values = converter(options, "value");
    headers = converter(options, "header");
    plain.configure(Collections.singletonMap("schemas.enable", "false"), false);
    for (int i = 0; i < metadata.size(); i++) columns.put(metadata.get(i), metadataType((String) metadata.get(i)));
    if (isJson) columns.put("value", DataTypes.StringType);
  }

  private static Converter converter(Map options, String part) {
    List named = (List) ((Map) options.get("converters")).get(part);
    String name = (String) named.get(0);
    boolean isSimple = part.equals("header") && (name.equals("") || name.equals("SimpleHeaderConverter"));
    Converter made = isSimple ? new SimpleHeaders() : name.equals("StringConverter") ? (Converter) new StringConverter()
        : name.equals("JsonConverter") ? new JsonConverter() : new PlainConverter();
    made.configure((Map) named.get(1), part.equals("key"));
    return made;
  }

  private static DataType metadataType(String name) {
    if (name.equals("partition")) return DataTypes.IntegerType;
    if (name.equals("timestamp")) return DataTypes.TimestampType;
    return name.equals("headers") ? HEADERS : DataTypes.StringType;
  }

  /**
   * The next rows written have a dead letter for this record.
   *
   * Throws the error if errors are not tolerated.
   */
  void reject(String stage, SourceRecord record, Exception error) throws Exception {
    if (!isTolerant) throw error;
    Map letter = new LinkedHashMap();
    letter.put("stage", stage);
    letter.put("place", placeOf(record));
    letter.put("reason", Plugins.describe(error));
    letter.put("record", shown(record.topic(), record.valueSchema(), record.value()));
    if (record.key() != null) letter.put("key", shown(record.topic(), record.keySchema(), record.key()));
    List pairs = new ArrayList();
    Iterator each = record.headers().iterator();
    while (each.hasNext()) {
      Header header = (Header) each.next();
      List pair = new ArrayList();
      pair.add(header.key());
      pair.add(header.value() == null ? null : shown(record.topic(), header.schema(), header.value()));
      pairs.add(pair);
    }
    if (!pairs.isEmpty()) letter.put("headers", Json.text(pairs));
    rejected.add(Json.text(letter));
  }

  private String shown(String topic, Schema schema, Object value) {
    if (value == null) return "";
    try {
      return new String(plain.fromConnectData(topic, schema, value), StandardCharsets.UTF_8);
    } catch (Exception error) {
      return String.valueOf(value);
    }
  }

  private static String placeOf(SourceRecord record) {
    return (record.topic() == null ? "" : "topic " + record.topic() + ", ") + "source partition "
        + Json.text(record.sourcePartition()) + ", offset " + Json.text(record.sourceOffset());
  }

  /**
   * Write the rows of records to a file; the result has their number and the columns: pairs of name and type. If errors
   * are tolerated, rows have two more: a dead letter, and the place of the record.
   *
   * originals: for each record, the one that the plug-in gave.
   */
  Map write(List records, List originals, String path) throws Exception {
    List kept = new ArrayList(records.size());
    List sources = new ArrayList(records.size());
    for (int i = 0; i < records.size(); i++) {
      SourceRecord record = (SourceRecord) records.get(i);
      if (!isJson) {
        // A tombstone has no fields, and a heartbeat of Debezium none of a table; their offsets are committed.
        if (record.value() == null || isHeartbeat(record.valueSchema())) continue;
        try {
          learn(record.valueSchema(), record.value());
        } catch (Exception error) {
          reject("source", (SourceRecord) originals.get(i), error);
          continue;
        }
      }
      kept.add(record);
      sources.add(originals.get(i));
    }
    Map result = new HashMap();
    List names = new ArrayList();
    int own = columns.size();
    StructField[] fields = new StructField[own + (isTolerant ? 2 : 0)];
    if (isTolerant) {
      fields[own] = new StructField("connectgroup_error", DataTypes.StringType, true, Metadata.empty());
      fields[own + 1] = new StructField("connectgroup_place", DataTypes.StringType, true, Metadata.empty());
    }
    Iterator each = columns.entrySet().iterator();
    for (int i = 0; i < own; i++) {
      Map.Entry column = (Map.Entry) each.next();
      DataType type = (DataType) column.getValue();
      fields[i] = new StructField((String) column.getKey(), type, true, Metadata.empty());
      List pair = new ArrayList();
      pair.add(column.getKey());
      pair.add(type.sql());
      names.add(pair);
    }
    result.put("columns", names);
    if (own == 0 && rejected.isEmpty()) {
      result.put("rows", Integer.valueOf(0));
      return result;
    }
    int written = 0;
    StructType type = new StructType(fields);
    VectorSchemaRoot root = VectorSchemaRoot.create(ArrowUtils.toArrowSchema(type, "UTC", true, false), allocator);
    FileOutputStream file = new FileOutputStream(path);
    try {
      ArrowWriter writer = ArrowWriter.create(root);
      ArrowStreamWriter stream = new ArrowStreamWriter(root, null, Channels.newChannel(file));
      stream.start();
      for (int i = 0; i < kept.size(); i++) {
        GenericInternalRow made;
        try {
          made = row((SourceRecord) kept.get(i), fields, own);
        } catch (Exception error) {
          reject("source", (SourceRecord) sources.get(i), error);
          continue;
        }
        if (isTolerant) made.update(own + 1, UTF8String.fromString(placeOf((SourceRecord) sources.get(i))));
        writer.write(made);
        written++;
      }
      for (int i = 0; i < rejected.size(); i++) {
        Object[] letter = new Object[fields.length];
        letter[own] = UTF8String.fromString((String) rejected.get(i));
        writer.write(new GenericInternalRow(letter));
        written++;
      }
      rejected.clear();
      writer.finish();
      stream.writeBatch();
      stream.end();
    } finally {
      file.close();
      root.close();
    }
    result.put("rows", Integer.valueOf(written));
    return result;
  }

  private static boolean isHeartbeat(Schema schema) {
    return schema != null && "io.debezium.connector.common.Heartbeat".equals(schema.name());
  }

  private void learn(Schema schema, Object value) {
    if (schema == null || schema.type() != Schema.Type.STRUCT) {
      DataType type = schema != null ? typeOf(schema) : typeOf(value);
      DataType before = (DataType) columns.get("value");
      columns.put("value", before == null ? type : merged("value", before, type));
      return;
    }
    if (known.containsKey(schema)) return;
    Iterator fields = schema.fields().iterator();
    while (fields.hasNext()) {
      Field field = (Field) fields.next();
      String name = field.name();
      if (metadata.contains(name)) {
        throw new IllegalArgumentException("the value has a field " + name
            + ", which is the name of a column of the record; allowed: source.metadata without " + name);
      }
      DataType type = typeOf(field.schema());
      DataType before = (DataType) columns.get(name);
      columns.put(name, before == null ? type : merged(name, before, type));
    }
    if (known.size() > 1000) known.clear();
    known.put(schema, Boolean.TRUE);
  }

  static DataType merged(String name, DataType before, DataType type) {
    if (before.equals(type)) return before;
    if (before instanceof StructType && type instanceof StructType) {
      LinkedHashMap fields = new LinkedHashMap();
      StructField[] old = ((StructType) before).fields();
      for (int i = 0; i < old.length; i++) fields.put(old[i].name(), old[i].dataType());
      StructField[] more = ((StructType) type).fields();
      for (int i = 0; i < more.length; i++) {
        DataType known = (DataType) fields.get(more[i].name());
        DataType found = more[i].dataType();
        fields.put(more[i].name(), known == null ? found : merged(name + "." + more[i].name(), known, found));
      }
      return structOf(fields);
    }
    if (before instanceof ArrayType && type instanceof ArrayType) {
      return new ArrayType(merged(name, ((ArrayType) before).elementType(), ((ArrayType) type).elementType()), true);
    }
    if (before instanceof MapType && type instanceof MapType) {
      return new MapType(merged(name, ((MapType) before).keyType(), ((MapType) type).keyType()),
          merged(name, ((MapType) before).valueType(), ((MapType) type).valueType()), true);
    }
    int low = rank(before);
    int high = rank(type);
    if (low > 0 && high > 0) return low > high ? before : type;
    if (low > 0 && low < 4 && type.equals(DataTypes.DoubleType)) return type;
    if (high > 0 && high < 4 && before.equals(DataTypes.DoubleType)) return before;
    if (before.equals(DataTypes.FloatType) && type.equals(DataTypes.DoubleType)) return type;
    if (before.equals(DataTypes.DoubleType) && type.equals(DataTypes.FloatType)) return before;
    throw new IllegalArgumentException("the field " + name + " was " + before.sql() + " and is " + type.sql()
        + "; allowed: the same type or a wider number, a transform that casts it, or another connector");
  }

  private static int rank(DataType type) {
    if (type.equals(DataTypes.ByteType)) return 1;
    if (type.equals(DataTypes.ShortType)) return 2;
    if (type.equals(DataTypes.IntegerType)) return 3;
    return type.equals(DataTypes.LongType) ? 4 : 0;
  }

  private static StructType structOf(LinkedHashMap types) {
    StructField[] fields = new StructField[types.size()];
    Iterator each = types.entrySet().iterator();
    for (int i = 0; i < fields.length; i++) {
      Map.Entry entry = (Map.Entry) each.next();
      fields[i] = new StructField((String) entry.getKey(), (DataType) entry.getValue(), true, Metadata.empty());
    }
    return new StructType(fields);
  }

  /** Spark's type of a schema. Times of day and decimals without a fixed scale are texts: Arrow has no exact type. */
  static DataType typeOf(Schema schema) {
    String name = schema.name() == null ? "" : schema.name();
    if (name.equals("org.apache.kafka.connect.data.Decimal")) {
      int scale = Integer.parseInt((String) schema.parameters().get("scale"));
      String digits = (String) schema.parameters().get("connect.decimal.precision");
      int precision = digits == null ? 38 : Integer.parseInt(digits);
      boolean fits = scale >= 0 && precision <= 38 && scale <= precision;
      return fits ? DataTypes.createDecimalType(precision, scale) : DataTypes.StringType;
    }
    if (name.equals("org.apache.kafka.connect.data.Date") || name.equals("io.debezium.time.Date")) {
      return DataTypes.DateType;
    }
    if (name.equals("org.apache.kafka.connect.data.Timestamp") || name.equals("io.debezium.time.ZonedTimestamp")) {
      return DataTypes.TimestampType;
    }
    if (name.equals("io.debezium.time.Timestamp") || name.equals("io.debezium.time.MicroTimestamp")) {
      return DataTypes.TimestampNTZType;
    }
    if (isTimeOfDay(name) || name.equals("io.debezium.data.VariableScaleDecimal")) return DataTypes.StringType;
    Schema.Type type = schema.type();
    if (type == Schema.Type.INT8) return DataTypes.ByteType;
    if (type == Schema.Type.INT16) return DataTypes.ShortType;
    if (type == Schema.Type.INT32) return DataTypes.IntegerType;
    if (type == Schema.Type.INT64) return DataTypes.LongType;
    if (type == Schema.Type.FLOAT32) return DataTypes.FloatType;
    if (type == Schema.Type.FLOAT64) return DataTypes.DoubleType;
    if (type == Schema.Type.BOOLEAN) return DataTypes.BooleanType;
    if (type == Schema.Type.BYTES) return DataTypes.BinaryType;
    if (type == Schema.Type.ARRAY) return new ArrayType(typeOf(schema.valueSchema()), true);
    if (type == Schema.Type.MAP) return new MapType(typeOf(schema.keySchema()), typeOf(schema.valueSchema()), true);
    if (type == Schema.Type.STRUCT) {
      LinkedHashMap fields = new LinkedHashMap();
      Iterator each = schema.fields().iterator();
      while (each.hasNext()) {
        Field field = (Field) each.next();
        fields.put(field.name(), typeOf(field.schema()));
      }
      return structOf(fields);
    }
    return DataTypes.StringType;
  }

  private static boolean isTimeOfDay(String name) {
    return name.equals("org.apache.kafka.connect.data.Time") || name.equals("io.debezium.time.Time")
        || name.equals("io.debezium.time.MicroTime") || name.equals("io.debezium.time.NanoTime");
  }

  /** The type of a value without a schema: objects and lists are JSON. */
  private static DataType typeOf(Object value) {
    if (value instanceof Byte) return DataTypes.ByteType;
    if (value instanceof Short) return DataTypes.ShortType;
    if (value instanceof Integer) return DataTypes.IntegerType;
    if (value instanceof Long) return DataTypes.LongType;
    if (value instanceof Float) return DataTypes.FloatType;
    if (value instanceof Double) return DataTypes.DoubleType;
    if (value instanceof Boolean) return DataTypes.BooleanType;
    if (value instanceof byte[] || value instanceof ByteBuffer) return DataTypes.BinaryType;
    if (value instanceof java.util.Date) return DataTypes.TimestampType;
    return DataTypes.StringType;
  }

  private GenericInternalRow row(SourceRecord record, StructField[] fields, int count) {
    Object[] found = new Object[fields.length];
    int own = metadata.size();
    for (int i = 0; i < own; i++) found[i] = metadataOf(record, (String) metadata.get(i));
    Schema schema = record.valueSchema();
    Object value = record.value();
    if (isJson) {
      found[own] = text(values, record.topic(), schema, value);
      return new GenericInternalRow(found);
    }
    boolean isStruct = schema != null && schema.type() == Schema.Type.STRUCT;
    for (int i = own; i < count; i++) {
      String name = fields[i].name();
      if (!isStruct) {
        if (name.equals("value")) found[i] = converted(name, schema, value, fields[i].dataType());
        continue;
      }
      Field field = schema.field(name);
      if (field != null) {
        found[i] = converted(name, field.schema(), valueOf((Struct) value, field), fields[i].dataType());
      }
    }
    return new GenericInternalRow(found);
  }

  private Object metadataOf(SourceRecord record, String name) {
    if (name.equals("topic")) return UTF8String.fromString(record.topic());
    if (name.equals("partition")) return record.kafkaPartition();
    if (name.equals("timestamp")) {
      return record.timestamp() == null ? null : Long.valueOf(record.timestamp().longValue() * 1000);
    }
    if (name.equals("key")) return text(keys, record.topic(), record.keySchema(), record.key());
    List pairs = new ArrayList();
    Iterator each = record.headers().iterator();
    while (each.hasNext()) {
      Header header = (Header) each.next();
      Object[] pair = new Object[2];
      pair[0] = UTF8String.fromString(header.key());
      pair[1] = text(headers, record.topic(), header.schema(), header.value());
      pairs.add(new GenericInternalRow(pair));
    }
    return new GenericArrayData(pairs.toArray());
  }

  private static UTF8String text(Converter converter, String topic, Schema schema, Object value) {
    byte[] bytes = converter.fromConnectData(topic, schema, value);
    return bytes == null ? null : UTF8String.fromBytes(bytes);
  }

  /** The value of a field. Struct.get returns the default for a null, also for one that a row of a table has. */
  private static Object valueOf(Struct struct, Field field) {
    return field.schema().isOptional() ? struct.getWithoutDefault(field.name()) : struct.get(field);
  }

  private static Object converted(String where, Schema schema, Object value, DataType target) {
    if (value == null) return null;
    String name = schema == null || schema.name() == null ? "" : schema.name();
    if (target instanceof StringType) return UTF8String.fromString(textOf(name, value));
    if (target instanceof LongType) return Long.valueOf(((Number) value).longValue());
    if (target instanceof IntegerType) return Integer.valueOf(((Number) value).intValue());
    if (target instanceof ShortType) return Short.valueOf(((Number) value).shortValue());
    if (target instanceof ByteType) return Byte.valueOf(((Number) value).byteValue());
    if (target instanceof DoubleType) return Double.valueOf(((Number) value).doubleValue());
    if (target instanceof FloatType) return Float.valueOf(((Number) value).floatValue());
    if (target instanceof BooleanType) return value;
    if (target instanceof BinaryType) {
      if (value instanceof byte[]) return value;
      ByteBuffer buffer = (ByteBuffer) ((ByteBuffer) value).duplicate();
      byte[] bytes = new byte[buffer.remaining()];
      buffer.get(bytes);
      return bytes;
    }
    if (target instanceof DecimalType) {
      DecimalType type = (DecimalType) target;
      BigDecimal number = ((BigDecimal) value).setScale(type.scale());
      if (number.precision() > type.precision()) {
        throw new IllegalArgumentException("the field " + where + " is " + number.toPlainString()
            + "; allowed: a decimal of at most " + type.precision() + " digits, or decimal.handling.mode string");
      }
      return Decimal.apply(number, type.precision(), type.scale());
    }
    if (target instanceof DateType) {
      if (value instanceof java.util.Date) {
        return Integer.valueOf((int) Math.floorDiv(((java.util.Date) value).getTime(), 86400000L));
      }
      return Integer.valueOf(((Number) value).intValue());
    }
    if (target instanceof TimestampType) {
      if (value instanceof java.util.Date) {
        return Long.valueOf(Math.multiplyExact(((java.util.Date) value).getTime(), 1000L));
      }
      return Long.valueOf(micros(where, (String) value));
    }
    if (target instanceof TimestampNTZType) {
      long at = ((Number) value).longValue();
      return Long.valueOf(name.equals("io.debezium.time.Timestamp") ? Math.multiplyExact(at, 1000L) : at);
    }
    if (target instanceof ArrayType) {
      DataType element = ((ArrayType) target).elementType();
      return array(where, schema.valueSchema(), (Collection) value, element);
    }
    if (target instanceof MapType) {
      MapType type = (MapType) target;
      Map map = (Map) value;
      return new ArrayBasedMapData(array(where, schema.keySchema(), map.keySet(), type.keyType()),
          array(where, schema.valueSchema(), map.values(), type.valueType()));
    }
    StructField[] fields = ((StructType) target).fields();
    Object[] found = new Object[fields.length];
    for (int i = 0; i < fields.length; i++) {
      Field field = schema.field(fields[i].name());
      if (field != null) {
        Object inner = valueOf((Struct) value, field);
        found[i] = converted(where + "." + field.name(), field.schema(), inner, fields[i].dataType());
      }
    }
    return new GenericInternalRow(found);
  }

  private static GenericArrayData array(String where, Schema schema, Collection values, DataType target) {
    Object[] found = new Object[values.size()];
    Iterator each = values.iterator();
    for (int i = 0; i < found.length; i++) found[i] = converted(where, schema, each.next(), target);
    return new GenericArrayData(found);
  }

  private static long micros(String where, String text) {
    OffsetDateTime at;
    try {
      at = OffsetDateTime.parse(text);
    } catch (Exception error) {
      throw new IllegalArgumentException("the field " + where + " is " + text + "; allowed: a time in ISO 8601");
    }
    if (at.getNano() % 1000 != 0) {
      throw new IllegalArgumentException("the field " + where + " is " + text + "; allowed: a time in microseconds");
    }
    return Math.addExact(Math.multiplyExact(at.toEpochSecond(), 1000000L), (long) (at.getNano() / 1000));
  }

  private static String textOf(String name, Object value) {
    if (value instanceof String) return (String) value;
    if (isTimeOfDay(name)) {
      long nanos = value instanceof java.util.Date ? ((java.util.Date) value).getTime() * 1000000L
          : name.equals("io.debezium.time.Time") ? ((Number) value).longValue() * 1000000L
          : name.equals("io.debezium.time.MicroTime") ? ((Number) value).longValue() * 1000L
          : ((Number) value).longValue();
      // 24:00:00 is a time of PostgreSQL and none of Java.
      return nanos == 86400000000000L ? "24:00:00" : LocalTime.ofNanoOfDay(nanos).toString();
    }
    if (name.equals("io.debezium.data.VariableScaleDecimal")) {
      Struct number = (Struct) value;
      Object bytes = number.get("value");
      byte[] unscaled = bytes instanceof byte[] ? (byte[]) bytes : ((ByteBuffer) bytes).array();
      return new BigDecimal(new BigInteger(unscaled), number.getInt32("scale").intValue()).toPlainString();
    }
    if (value instanceof BigDecimal) return ((BigDecimal) value).toPlainString();
    if (value instanceof Map || value instanceof List) return Json.text(value);
    return String.valueOf(value);
  }
}
