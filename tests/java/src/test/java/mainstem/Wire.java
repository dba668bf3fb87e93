package mainstem;

import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;

/**
 * Connections to the broker, one at a time, that a test can cut: the client has no way to close its own without a
 * DISCONNECT.
 */
final class Wire implements AutoCloseable {
    private final ServerSocket listener;
    private final String host;
    private final int port;
    private volatile Socket near;
    private volatile Socket far;

    Wire(String host, int port) throws IOException {
        this.host = host;
        this.port = port;
        listener = new ServerSocket(0, 1, InetAddress.getLoopbackAddress());
        Thread acceptor = new Thread(this::accept);
        acceptor.setDaemon(true);
        acceptor.start();
    }

    /** The port for the client, on the loopback interface. */
    int port() {
        return listener.getLocalPort();
    }

    private void accept() {
        try {
            while (true) {
                Socket client = listener.accept();
                Socket broker = new Socket(host, port);
                near = client;
                far = broker;
                pump(client, broker);
                pump(broker, client);
            }
        } catch (IOException closed) {
            // The test is over.
        }
    }

    private void pump(Socket from, Socket to) {
        Thread pump = new Thread(() -> {
            try {
                from.getInputStream().transferTo(to.getOutputStream());
                to.shutdownOutput();
            } catch (IOException expected) {
                // One of the two sockets is closed, so the connection has ended.
            }
        });
        pump.setDaemon(true);
        pump.start();
    }

    /** Closes both sides of the latest connection, like a network failure. */
    void cut() throws IOException {
        far.close();
        near.close();
    }

    @Override
    public void close() throws IOException {
        listener.close();
    }
}
