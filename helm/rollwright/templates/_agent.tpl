{{/*
What each node accepts: the values, and the models that GPU nodes have for engines.
*/}}
{{- define "rollwright.agentPolicy" -}}
{{- $policy := .Values.agent.policy | deepCopy -}}
{{- with .Values.agent.gpu.models.hostPath -}}
{{- $engines := $policy.engines | default dict -}}
{{- $models := append ($engines.models | default list) (printf "%s/*" .) | uniq -}}
{{- $_ := set $policy "engines" (set $engines "models" $models) -}}
{{- end -}}
{{- toYaml $policy -}}
{{- end -}}

{{/*
The agents of one mode. The argument: a list of the context and the mode: `host`, `dind`, or `gpu`,
which is `host` with the node's GPUs.

An agent is as powerful as root on its node, since it holds a Docker socket: its nodes and this
namespace must be guarded accordingly. What it does not need it does not get all the same.
*/}}
{{- define "rollwright.agent" -}}
{{- $context := index . 0 -}}
{{- $mode := index . 1 -}}
{{- $host := ne $mode "dind" -}}
{{- $gpu := eq $mode "gpu" -}}
{{- $agent := $context.Values.agent -}}
{{- $settings := index $agent $mode -}}
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: rollwright-agent-{{ $mode }}
  namespace: {{ $context.Release.Namespace }}
  labels:
    {{- include "rollwright.labels" (list $context "agent") | nindent 4 }}
    rollwright.dev/agent: {{ $mode }}
spec:
  selector:
    matchLabels:
      {{- include "rollwright.selector" "agent" | nindent 6 }}
      rollwright.dev/agent: {{ $mode }}
  updateStrategy:
    {{- toYaml $settings.updateStrategy | nindent 4 }}
  template:
    metadata:
      # No versions here: a new chart alone starts no agent anew.
      labels:
        {{- include "rollwright.selector" "agent" | nindent 8 }}
        rollwright.dev/agent: {{ $mode }}
      annotations:
        kubectl.kubernetes.io/default-container: agent
        {{- if and $gpu $settings.fake }}
        rollwright.dev/fake-gpus: {{ $settings.fake | quote }}
        {{- end }}
        # A changed policy is a new agent.
        checksum/policy: {{ include "rollwright.agentPolicy" $context | sha256sum | trunc 16 }}
        {{- with $agent.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      serviceAccountName: rollwright-agent
      automountServiceAccountToken: false
      {{- with include "rollwright.agentPriorityClass" $context }}
      priorityClassName: {{ . }}
      {{- end }}
      {{- if and $gpu $settings.runtimeClassName (not $settings.fake) }}
      # Brings the driver and the devices in. The GPUs are not asked for: the pool's reservation holds
      # them, and many services share them.
      runtimeClassName: {{ $settings.runtimeClassName }}
      {{- end }}
      # The controllers put this label on the nodes of bound pools.
      nodeSelector:
        rollwright.dev/agent: {{ $mode }}
      tolerations:
        {{- toYaml $agent.tolerations | nindent 8 }}
      # Actions that end meanwhile are kept by their sandboxes' helpers and found again.
      terminationGracePeriodSeconds: 30
      {{- if $host }}
      # Docker tells the processes of sandboxes by the node's numbers.
      hostPID: true
      # The rules of sandbox networks belong where Docker's bridges are.
      hostNetwork: true
      dnsPolicy: ClusterFirstWithHostNet
      {{- else }}
      # The engine tells the processes of sandboxes by the numbers of its own namespace.
      shareProcessNamespace: true
      {{- end }}
      securityContext:
        seccompProfile:
          type: RuntimeDefault
        # The default profile of container runtimes lets no signal out to sandboxes.
        appArmorProfile:
          type: Unconfined
        {{- with $agent.seLinuxOptions }}
        seLinuxOptions:
          {{- toYaml . | nindent 10 }}
        {{- end }}
      {{- if not $host }}
      initContainers:
        # A sidecar: up before the agent, ended after it.
        - name: docker
          image: {{ include "rollwright.image" (list $settings.image "") | quote }}
          imagePullPolicy: {{ $settings.image.pullPolicy }}
          restartPolicy: Always
          # Past the image's own entrypoint, which would move the node's processes to another cgroup.
          command: [dockerd]
          args:
            - --host=unix:///run/rollwright-docker/docker.sock
            - --data-root=/var/lib/docker
            - --exec-root=/run/rollwright-docker/exec
            - --pidfile=/run/rollwright-docker/docker.pid
            # Sandboxes stand in the cgroup of the node's reservation, given as a path.
            - --exec-opt=native.cgroupdriver=cgroupfs
            {{- with $settings.args }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          startupProbe:
            exec:
              command: [docker, --host=unix:///run/rollwright-docker/docker.sock, version]
            periodSeconds: 2
            timeoutSeconds: 10
            failureThreshold: 90
          livenessProbe:
            exec:
              command: [docker, --host=unix:///run/rollwright-docker/docker.sock, version]
            periodSeconds: 30
            timeoutSeconds: 20
            failureThreshold: 4
          securityContext:
            # A container engine mounts file systems, makes namespaces and devices, and writes to
            # the node's cgroups: no smaller set of rights is known to do.
            privileged: true
          resources:
            {{- toYaml $settings.resources | nindent 12 }}
          volumeMounts:
            - name: docker-run
              mountPath: /run/rollwright-docker
            - name: docker-data
              mountPath: /var/lib/docker
            - name: cgroup
              mountPath: /sys/fs/cgroup
            # The engine mounts the helper and its socket into sandboxes, by the agent's paths.
            - name: state
              mountPath: {{ $agent.stateDir }}
      {{- end }}
      containers:
        - name: agent
          image: {{ include "rollwright.image" (list $agent.image $context.Chart.AppVersion) | quote }}
          imagePullPolicy: {{ $agent.image.pullPolicy }}
          args:
            - --links=/etc/rollwright/links
            - --node=$(NODE_NAME)
            - --docker-socket={{ ternary (printf "/host%s" $agent.host.socket) "/run/rollwright-docker/docker.sock" $host }}
            - --state-dir={{ $agent.stateDir }}/agent
            - --init={{ $agent.stateDir }}/bin/rollwright-init
            - --policy=/etc/rollwright/policy/policy.yaml
            {{- if $agent.registrySecret }}
            - --docker-config=/etc/rollwright/registry/.dockerconfigjson
            {{- end }}
            - --resets-at-once={{ $agent.resetsAtOnce }}
            {{- if and $gpu $settings.fake }}
            # A FAKE of GPUs, for tests: no real one is used.
            - --fake-gpus={{ $settings.fake }}
            {{- end }}
            {{- if and $gpu $settings.arenaMib }}
            - --gpu-arena-mib={{ int $settings.arenaMib }}
            {{- end }}
            - --metrics-addr=0.0.0.0:9464
            - --metrics-token-file=/etc/rollwright/metrics/token
            - --log-format={{ $agent.logFormat }}
          env:
            - name: NODE_NAME
              valueFrom:
                fieldRef:
                  fieldPath: spec.nodeName
            - name: RUST_LOG
              value: {{ $agent.logLevel | quote }}
            {{- if and $gpu (not $settings.fake) }}
            # Read by NVIDIA's container runtime; compute and utility: CUDA and NVML.
            - name: NVIDIA_VISIBLE_DEVICES
              value: all
            - name: NVIDIA_DRIVER_CAPABILITIES
              value: compute,utility
            {{- end }}
            # Whose cgroup namespace the entrypoint joins, and what it drops then.
            - name: ROLLWRIGHT_CGROUPS_OF
              value: {{ ternary "1" "dockerd" $host | quote }}
            - name: ROLLWRIGHT_DROP
              value: setpcap,-sys_admin{{ if not (has "SYS_PTRACE" $agent.extraCapabilities) }},-sys_ptrace{{ end }}
          ports:
            - name: metrics
              containerPort: 9464
          startupProbe:
            httpGet: { path: /healthz, port: metrics }
            periodSeconds: 2
            failureThreshold: 60
          livenessProbe:
            httpGet: { path: /healthz, port: metrics }
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 6
          securityContext:
            # Owner of Docker's socket, of the cgroups and of the helpers' sockets.
            runAsUser: 0
            runAsGroup: 0
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities:
              drop: [ALL]
              add:
                # Ends actions, which run as another user, on nodes with cgroup v1.
                - KILL
                # Puts the packet filter's rules around sandboxes with network.
                - NET_ADMIN
                - NET_RAW
                # Moves a sandbox's first process, which has rights of its own, on nodes with cgroup v2.
                - SYS_NICE
                # The entrypoint alone: it joins the node's cgroup namespace, where sandboxes
                # are, and drops these three before the agent starts.
                - SETPCAP
                - SYS_ADMIN
                - SYS_PTRACE
                {{- with without $agent.extraCapabilities "SYS_PTRACE" }}
                # By the values.
                {{- toYaml . | nindent 16 }}
                {{- end }}
          resources:
            {{- toYaml (ternary $settings.resources $agent.resources $gpu) | nindent 12 }}
          volumeMounts:
            # CPU, memory and end of every action are files here.
            - name: cgroup
              mountPath: /sys/fs/cgroup
            # The same path as on the node, or for the engine: Docker mounts from here.
            - name: state
              mountPath: {{ $agent.stateDir }}
            {{- if $host }}
            # The directory, since an engine that starts anew makes a new socket.
            - name: docker-socket
              mountPath: /host{{ dir $agent.host.socket }}
              readOnly: true
            # How much of Docker's disk is free. What Docker unmounts must not stay mounted here.
            - name: docker-data
              mountPath: {{ $agent.host.dockerRoot }}
              readOnly: true
              mountPropagation: HostToContainer
            # The lock that all programs of the node take before they change the packet filter.
            - name: xtables-lock
              mountPath: /run/xtables.lock
            {{- if and $gpu $settings.models.hostPath }}
            # The same path as on the node: Docker mounts from there what is found here.
            - name: models
              mountPath: {{ $settings.models.hostPath }}
              readOnly: true
              mountPropagation: HostToContainer
            {{- end }}
            {{- else }}
            - name: docker-run
              mountPath: /run/rollwright-docker
            # How much of the engine's disk is free.
            - name: docker-data
              mountPath: /var/lib/docker
              readOnly: true
            # Of the packet filter's lock; the pod's network is shared with nobody.
            - name: run
              mountPath: /run
            {{- end }}
            - name: links
              mountPath: /etc/rollwright/links
              readOnly: true
            - name: policy
              mountPath: /etc/rollwright/policy
              readOnly: true
            - name: metrics-token
              mountPath: /etc/rollwright/metrics
              readOnly: true
            {{- if $agent.registrySecret }}
            - name: registry
              mountPath: /etc/rollwright/registry
              readOnly: true
            {{- end }}
      volumes:
        - name: cgroup
          hostPath:
            path: /sys/fs/cgroup
            type: Directory
        - name: state
          hostPath:
            path: {{ $agent.stateDir }}
            type: DirectoryOrCreate
        {{- if $host }}
        - name: docker-socket
          hostPath:
            path: {{ dir $agent.host.socket }}
            type: Directory
        - name: docker-data
          hostPath:
            path: {{ $agent.host.dockerRoot }}
            type: Directory
        - name: xtables-lock
          hostPath:
            path: /run/xtables.lock
            type: FileOrCreate
        {{- if and $gpu $settings.models.hostPath }}
        - name: models
          hostPath:
            path: {{ $settings.models.hostPath }}
            type: Directory
        {{- end }}
        {{- else }}
        - name: docker-run
          emptyDir:
            medium: Memory
            sizeLimit: 64Mi
        - name: run
          emptyDir:
            medium: Memory
            sizeLimit: 1Mi
        - name: docker-data
          {{- $data := $settings.data }}
          {{- if hasKey $data "ephemeral" }}
          ephemeral:
            volumeClaimTemplate:
              spec:
                accessModes: [ReadWriteOnce]
                {{- with $data.ephemeral.storageClassName }}
                storageClassName: {{ . }}
                {{- end }}
                resources:
                  requests:
                    storage: {{ $data.ephemeral.size }}
          {{- else if hasKey $data "emptyDir" }}
          emptyDir:
            {{- toYaml $data.emptyDir | nindent 12 }}
          {{- else }}
          hostPath:
            path: {{ $data.hostPath | default "/var/lib/rollwright-docker" }}
            type: DirectoryOrCreate
          {{- end }}
        {{- end }}
        # Written by the controllers; without it the agent waits.
        - name: links
          secret:
            secretName: rollwright-agent-links
            optional: true
            defaultMode: 0400
        - name: policy
          configMap:
            name: rollwright-agent-policy
        - name: metrics-token
          secret:
            secretName: {{ include "rollwright.metricsSecret" $context }}
            defaultMode: 0400
        {{- if $agent.registrySecret }}
        - name: registry
          secret:
            secretName: {{ $agent.registrySecret }}
            defaultMode: 0400
        {{- end }}
{{- end }}
