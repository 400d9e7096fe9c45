import java.util.Map;
import org.sourcelab.kafka.connect.apiclient.Configuration;
import org.sourcelab.kafka.connect.apiclient.KafkaConnectClient;
import org.sourcelab.kafka.connect.apiclient.request.dto.NewConnectorDefinition;
import org.sourcelab.kafka.connect.apiclient.rest.exceptions.ResourceNotFoundException;

/** Manages one connector with the Java client org.sourcelab:kafka-connect-client; prints what it is told. */
final class ConnectClient {
    public static void main(String[] arguments) throws Exception {
        KafkaConnectClient client = new KafkaConnectClient(new Configuration(arguments[0]));
        String name = arguments[1];
        System.out.println("version " + client.getConnectServerVersion().getVersion());
        client.addConnector(NewConnectorDefinition.newBuilder()
            .withName(name)
            .withConfig(Map.of("connector.class", "idle", "tasks.max", "2"))
            .build());
        System.out.println("connectors " + client.getConnectors());
        awaitState(client, name, "RUNNING");
        System.out.println("tasks " + client.getConnectorTasks(name).size());
        while (!client.getConnectorTaskStatus(name, 1).getState().equals("RUNNING")) {
            Thread.sleep(50);
        }
        System.out.println("task 1 RUNNING");
        client.updateConnectorConfig(name, Map.of("connector.class", "idle", "tasks.max", "1", "name", name));
        System.out.println("tasks.max " + client.getConnectorConfig(name).get("tasks.max"));
        client.pauseConnector(name);
        awaitState(client, name, "PAUSED");
        client.resumeConnector(name);
        awaitState(client, name, "RUNNING");
        client.restartConnector(name);
        System.out.println("expanded " + client.getConnectorsWithAllExpandedMetadata().getConnectorNames());
        System.out.println("plugin " + client.getConnectorPlugins().iterator().next().getClassName());
        client.deleteConnector(name);
        try {
            client.getConnector(name);
        } catch (ResourceNotFoundException error) {
            System.out.println("error " + error.getMessage());
        }
    }

    private static void awaitState(KafkaConnectClient client, String name, String state) throws InterruptedException {
        while (!client.getConnectorStatus(name).getConnector().get("state").equals(state)) {
            Thread.sleep(50);
        }
        System.out.println(state);
    }
}
