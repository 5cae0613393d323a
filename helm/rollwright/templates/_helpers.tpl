{{/* Labels that select our pods; the argument: component. */}}
{{- define "rollwright.selector" -}}
app.kubernetes.io/name: rollwright
app.kubernetes.io/component: {{ . }}
{{- end }}

{{/* Labels of an object; the argument: a list of the context and the component. */}}
{{- define "rollwright.labels" -}}
{{- $context := index . 0 -}}
{{ include "rollwright.selector" (index . 1) }}
app.kubernetes.io/version: {{ $context.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $context.Release.Service }}
helm.sh/chart: {{ $context.Chart.Name }}-{{ $context.Chart.Version | replace "+" "_" }}
{{- end }}

{{/* An image reference; the argument: a list of the image's values and the default tag. */}}
{{- define "rollwright.image" -}}
{{- $image := index . 0 -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default (index . 1) }}
{{- end -}}
{{- end }}

{{/* Name of the Secret with the metrics token. */}}
{{- define "rollwright.metricsSecret" -}}
{{ .Values.metrics.existingSecret | default "rollwright-metrics" }}
{{- end }}

{{/* Name of the agents' priority class, or nothing. */}}
{{- define "rollwright.agentPriorityClass" -}}
{{- with .Values.agent.priorityClass -}}
{{- if .create }}rollwright-agent{{ else }}{{ .name }}{{ end -}}
{{- end -}}
{{- end }}

{{/* Name of the reservations' priority class, or nothing. */}}
{{- define "rollwright.reservationPriorityClass" -}}
{{- with .Values.controllers.reservationPriorityClass -}}
{{- if .create }}rollwright-reservation{{ else }}{{ .name }}{{ end -}}
{{- end -}}
{{- end }}

{{/* How every pod of ours but the agent's is confined. */}}
{{- define "rollwright.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}
